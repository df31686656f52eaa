"""Work and energy of each tenant while all tenants ran."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattline.contract import metrics as m
from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.integrate import RUN_AGE_S
from wattline_analyzer.core.phases import phase_span, rise_limits, run_phase_spans
from wattline_analyzer.core.recorded_run import RunScrapes
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable, rows_of, samples
from wattline_analyzer.core.samples import FloatArray, Samples, clean
from wattline_analyzer.tenants.figures import ConcurrentStep, SoloRun, TenantShare

MEASURE = "measure"
POLICY = "idle_shared"
"""Policy with shared idle power, so that the tenants' energy adds up to the GPU's."""
_REPORT_S = 2.0
"""Usual time between two reports of work."""
_ALL_OF_PHASE = 0.999
"""Share of a phase from which on the overlap is the whole phase."""


@dataclass(frozen=True, slots=True)
class TenantRun:
    """A tenant's run with its report and all samples of its work and attributed energy
    (`series`), under one address of each node.
    """

    scrapes: RunScrapes
    report: Report
    series: SampleTable

    @property
    def name(self) -> str:
        return self.report.labels.get("tenant", "")

    @property
    def has_comparable_samples(self) -> bool:
        """True if the samples have timestamps of the clock that the ledger's times have."""
        return not any(finding.code == "clock_apart" for finding in self.report.findings)


def concurrent_runs(runs: Sequence[TenantRun]) -> list[list[TenantRun]]:
    """Group runs that overlap on a common GPU, or without GPUs on a common instance, by start
    time.
    """
    steps: list[tuple[float, list[TenantRun]]] = []
    for run in sorted(runs, key=lambda run: run.report.started_at_s):
        report = run.report
        end_s = report.ended_at_s if report.ended_at_s is not None else math.inf
        position = next(
            (
                index
                for index, (until_s, others) in enumerate(steps)
                if until_s > report.started_at_s
                and any(_places(one) & _places(run) for one in others)
            ),
            None,
        )
        if position is None:
            steps.append((end_s, [run]))
        else:
            until_s, others = steps[position]
            steps[position] = (max(until_s, end_s), [*others, run])
    return [step for _, step in steps]


def _places(run: TenantRun) -> set[str]:
    """Return the UUIDs of a run's GPUs, else its instances."""
    return {gpu.device for gpu in run.report.gpus} or set(run.report.instances)


def measure_span(run: TenantRun) -> tuple[float, float] | None:
    """Return start and end of the phase `measure` by the ledger, common to all instances."""
    each = (phase_span(run_phase_spans(run.scrapes, one), MEASURE) for one in run.report.instances)
    spans = [span for span in each if span is not None]
    return (max(begin for begin, _ in spans), min(end for _, end in spans)) if spans else None


def concurrent_step(step: Sequence[TenantRun]) -> ConcurrentStep | str:
    """Return the figures of the overlap, or the reason why there are none."""
    names = [run.name for run in step]
    if len(set(names)) < len(names):
        return f"two tenants have the name {next(name for name in names if names.count(name) > 1)}"
    spans = [measure_span(run) for run in step]
    known = [one for one in spans if one is not None]
    if len(known) < len(spans):
        missing = next(run for run, one in zip(step, spans, strict=True) if one is None)
        return f"run {missing.report.run_id} has no phase {MEASURE}"
    begin_s = max(begin for begin, _ in known)
    end_s = min(end for _, end in known)
    if end_s <= begin_s:
        return f"the phases {MEASURE} of {' and '.join(names)} do not overlap"
    shares = tuple(_share(run, one, (begin_s, end_s)) for run, one in zip(step, known, strict=True))
    energy = _total_energy(step, known, shares, end_s - begin_s)
    first = step[0].report.labels
    return ConcurrentStep(
        first.get("case", ""),
        first.get("repeat", ""),
        first.get("mps") == "true",
        end_s - begin_s,
        tuple(_scaled(share, energy, shares) for share in shares),
        energy,
    )


def _total_energy(
    step: Sequence[TenantRun],
    spans: Sequence[tuple[float, float]],
    shares: Sequence[TenantShare],
    overlap_s: float,
) -> Figure | None:
    """Return the joules of all tenants in the overlap: the attributed samples, within the limits of
    the ledger.

    The ledger knows the energy of the GPUs in each tenant's phase, which contains the overlap. A
    phase whose half-width is unknown sets no limits.
    """
    parts = [share.energy for share in shares if share.energy is not None]
    if len(parts) < len(shares):
        return None
    sampled = sum_of_correlated(parts)
    low, high = sampled.limits
    phases = [
        _phase_energy(run, end_s - begin_s)
        for run, (begin_s, end_s) in zip(step, spans, strict=True)
    ]
    if len({frozenset(device.device for device in run.report.gpus) for run in step}) == 1:
        for run, (begin_s, end_s), phase in zip(step, spans, phases, strict=True):
            if phase is not None and phase.low is not None and phase.high is not None:
                outside_j = _highest_energy_j(run, end_s - begin_s - overlap_s)
                low = max(low, phase.low - outside_j)
                high = min(high, phase.high)
    if low > high:  # a run that is no tenant used the GPUs as well
        low, high = sampled.limits
    return _within(sampled.number, low, high)


def _within(value: float, low: float, high: float) -> Figure:
    return Figure(min(max(value, low), high), skewed=(low, high))


def _phase_energy(run: TenantRun, length_s: float) -> Figure | None:
    """Return the joules of the run's GPUs in the phase `measure`; None if they are unknown, or it
    has gaps.
    """
    phase = next((phase for phase in run.report.phases if phase.name == MEASURE), None)
    is_known = (
        phase is not None and "gpu" in phase.energy and phase.duration_s >= _ALL_OF_PHASE * length_s
    )
    return phase.energy["gpu"] if phase is not None and is_known else None


def _highest_energy_j(run: TenantRun, length_s: float) -> float:
    """Return the most that the run's GPUs can have used in this time."""
    if length_s <= 0:
        return 0.0
    return length_s * math.fsum(
        device.max_power_w or device.power_limit_w or math.inf for device in run.report.gpus
    )


def _scaled(
    share: TenantShare, energy: Figure | None, shares: Sequence[TenantShare]
) -> TenantShare:
    """Return the share with its part of the tenants' energy, within its own limits."""
    sampled_j = math.fsum(one.energy.number for one in shares if one.energy is not None)
    if share.energy is None or energy is None or sampled_j <= 0:
        return share
    return replace(
        share, energy=_within(share.energy.number * energy.number / sampled_j, *share.energy.limits)
    )


def solo_run(run: TenantRun) -> SoloRun | None:
    """Return a tenant's solo run; None without work."""
    work = run.report.work[0] if run.report.work else None
    if work is None or not work.per_second:
        return None
    gpus = run.report.gpus
    idle_w = [device.idle_power_w.number for device in gpus if device.idle_power_w]
    idle_power_w = math.fsum(idle_w) if gpus and len(idle_w) == len(gpus) else None
    return SoloRun(work.per_second, work.energy_per_unit, idle_power_w, _p99(run), work.unit)


def _share(run: TenantRun, own: tuple[float, float], overlap: tuple[float, float]) -> TenantShare:
    unit = run.report.work[0].unit if run.report.work else ""
    work = sum_of_correlated(
        _work(run, instance, unit, own, overlap).symmetric() for instance in run.report.instances
    )
    ratio = min((overlap[1] - overlap[0]) / (own[1] - own[0]), 1.0)
    return TenantShare(run.name, unit, work, _energy(run, overlap), ratio, _p99(run))


def _work(
    run: TenantRun, instance: str, unit: str, own: tuple[float, float], overlap: tuple[float, float]
) -> Figure:
    """Return work in the overlap: all work of the phase if the overlap is the whole phase, else
    interpolated.

    The ledger has the work of the phase; without work by phase, the work done before its start is
    subtracted. Work at a time is at least the amount in the last report before it, and at most the
    amount in the next one.
    """
    where = {"run_id": run.report.run_id, "instance": instance, "unit": unit}
    done = samples(run.series, m.RUN_PHASE_WORK, phase=MEASURE, **where)
    whole = samples(run.series, m.RUN_WORK, **where)
    if len(done) and len(whole) and math.isclose(done.value.max(), whole.value.max()):
        done, before, after = whole, 0.0, float(whole.value.max())  # a phase is exported late
    elif len(done):
        before = 0.0
        after = float(done.value.max())
    else:
        done = whole
        earlier = done.value[done.t <= own[0]]
        before = float(earlier[-1]) if len(earlier) else 0.0
        after = float(done.value.max(initial=0.0))
    if overlap[1] - overlap[0] >= _ALL_OF_PHASE * (own[1] - own[0]):
        return Figure(after - before, 0.0)
    reports = _reports(run, instance, done)
    at = _work_at_report if reports is not None else _work_at_sample
    known = done if reports is None else reports
    inside = (
        (known.t > own[0])
        & (known.t < own[1])
        & (reports is not None or run.has_comparable_samples)
    )
    times = np.array([own[0], *known.t[inside], own[1]])
    amounts = np.array([before, *known.value[inside], after])
    begin, end = (at(times, amounts, moment_s) for moment_s in overlap)
    begin_low, begin_high = begin.limits
    end_low, end_high = end.limits
    return _within(end.number - begin.number, max(end_low - begin_high, 0.0), end_high - begin_low)


def _reports(run: TenantRun, instance: str, done: Samples) -> Samples | None:
    """Return the work at the times of its reports by the ledger; None where a sample has no time of
    its report.
    """
    reported = samples(
        run.series, m.RUN_WORK_TIMESTAMP, run_id=run.report.run_id, instance=instance
    )
    at = np.searchsorted(reported.t, done.t, side="right") - 1
    if not len(reported) or (at < 0).any():
        return None
    return clean(reported.value[at], done.value)


def _work_at_report(times: FloatArray, amounts: FloatArray, t: float) -> Figure:
    """Return the work done at `t` by the work at the times of reports, of which the first and last
    are exact.

    A report contains all work of its contributor. The others' work until then is in their next
    reports.
    """
    before = max(int(np.searchsorted(times, t, side="right")) - 1, 0)
    after = min(int(np.searchsorted(times, t + _REPORT_S)), len(times) - 1)
    is_exact = t <= times[0] or t >= times[-1]
    limits = (float(amounts[before]), float(amounts[before if is_exact else after]))
    return _within(float(np.interp(t, times, amounts)), *limits)


def _work_at_sample(times: FloatArray, reported: FloatArray, t: float) -> Figure:
    """Return the work done at `t` by the latest report at the times of samples; the first and last
    are exact.

    The time of each report is known between two samples only.
    """
    if t <= times[0] or t >= times[-1]:
        value = float(reported[0 if t <= times[0] else -1])
        return Figure(value, skewed=(value, value))
    at = int(np.searchsorted(times, t))  # the first sample after it
    later = reported[at:][reported[at:] > reported[at]]
    low = float(reported[at - 1])
    high = float(later[0] if len(later) else reported[-1])
    rises = np.flatnonzero(np.diff(reported[:-1]) > 0) + 1
    lags_s = (
        np.minimum(times[rises] - times[rises - 1], _REPORT_S)
        / 2
        * (len(rises) < len(reported) - 2)
    )
    points = np.array([times[0], *(times[rises] - lags_s), times[-1]])
    values = np.array([reported[0], *reported[rises], reported[-1]])
    return Figure(min(max(float(np.interp(t, points, values)), low), high), skewed=(low, high))


def _energy(run: TenantRun, overlap: tuple[float, float]) -> Figure | None:
    """Return the joules attributed to the run on its GPUs; None without attribution, or if clocks
    differ.
    """
    where = {"run_id": run.report.run_id, "component": "gpu", "policy": POLICY}
    rows = rows_of(run.series, m.RUN_ATTRIBUTED_ENERGY, **where)
    counted = {(gpu.instance, gpu.device) for gpu in run.report.gpus}
    lines = {
        (i, d): clean(of_device.t, of_device.value)
        for (i, d), of_device in rows.groups("instance", "device")
        if (i, d) in counted
    }
    if not lines or not run.has_comparable_samples:
        return None
    return sum_of_correlated(
        rise_limits(line, overlap, _edges(run, i, line), RUN_AGE_S)
        for (i, _), line in lines.items()
    )


def _edges(run: TenantRun, instance: str, line: Samples) -> tuple[tuple[float, float], ...]:
    """Return the known energy at start and end of the run, between scrapes."""
    window = run.scrapes.windows.get(instance)
    if window is None:
        return ()
    start = window.start_s, 0.0
    end = window.end_s, float(line.value[-1])
    return (start, end) if window.ended else (start,)


def _p99(run: TenantRun) -> Mapping[str, float]:
    return {
        name: value for name, value in run.report.results.items() if name.endswith("_seconds_p99")
    }
