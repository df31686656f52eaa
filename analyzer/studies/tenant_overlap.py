"""Work and energy of each tenant while all tenants ran."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzer.energy.phases import phase_span, rise_between, run_phase_spans
from analyzer.model.report import Report
from analyzer.model.sample_table import RunFrames, last, rows_of, samples
from analyzer.model.samples import Samples, clean
from analyzer.studies.tenants import ConcurrentStep, SoloRun, TenantShare
from exporter.contract import metrics as m

MEASURE = "measure"
POLICY = "idle_shared"
"""Policy with shared idle power, so that the tenants' energy adds up to the GPU's."""
_ALL_OF_PHASE = 0.999
"""Share of a phase from which on the overlap is the whole phase."""


@dataclass(frozen=True, slots=True)
class TenantRun:
    """A tenant's run with its report and all samples of its work and attributed energy (`series`)."""

    frames: RunFrames
    report: Report
    series: RunFrames

    @property
    def name(self) -> str:
        return self.report.labels.get("tenant", "")

    @property
    def has_comparable_samples(self) -> bool:
        """True if the samples have timestamps of the clock that the ledger's times have."""
        return not any(finding.code == "clock_apart" for finding in self.report.findings)


def concurrent_runs(runs: Sequence[TenantRun]) -> list[list[TenantRun]]:
    """Group runs that overlap on the same instances, by start time."""
    steps: list[tuple[float, list[TenantRun]]] = []
    for run in sorted(runs, key=lambda run: run.report.started_at_s):
        report = run.report
        end_s = report.ended_at_s if report.ended_at_s is not None else math.inf
        position = next(
            (
                index
                for index, (until_s, others) in enumerate(steps)
                if until_s > report.started_at_s and set(others[0].report.instances) & set(report.instances)
            ),
            None,
        )
        if position is None:
            steps.append((end_s, [run]))
        else:
            until_s, others = steps[position]
            steps[position] = (max(until_s, end_s), [*others, run])
    return [step for _, step in steps]


def measure_span(run: TenantRun) -> tuple[float, float] | None:
    """Return start and end of the phase `measure` by the ledger, common to all instances."""
    ledger, run_id = run.frames.ledger, run.report.run_id
    each = (phase_span(run_phase_spans(ledger, run_id, one), MEASURE) for one in run.report.instances)
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
    begin_s, end_s = max(begin for begin, _ in known), min(end for _, end in known)
    if end_s <= begin_s:
        return f"the phases {MEASURE} of {' and '.join(names)} do not overlap"
    shares = tuple(_share(run, one, (begin_s, end_s)) for run, one in zip(step, known, strict=True))
    first = step[0].report.labels
    return ConcurrentStep(
        first.get("case", ""), first.get("repeat", ""), first.get("mps") == "true", end_s - begin_s, shares
    )


def solo_run(run: TenantRun) -> SoloRun | None:
    """Return a tenant's solo run; None without work."""
    work = run.report.work[0] if run.report.work else None
    if work is None or not work.per_second:
        return None
    gpus = run.report.gpus
    idle_w = [device.idle_power_w.value for device in gpus if device.idle_power_w]
    energy_j = work.energy_per_unit.value if work.energy_per_unit else None
    idle_power_w = math.fsum(idle_w) if gpus and len(idle_w) == len(gpus) else None
    return SoloRun(work.per_second, energy_j, idle_power_w, _p99(run), work.unit)


def _share(run: TenantRun, own: tuple[float, float], overlap: tuple[float, float]) -> TenantShare:
    unit = run.report.work[0].unit if run.report.work else ""
    work = math.fsum(_work(run, instance, unit, own, overlap) for instance in run.report.instances)
    ratio = min((overlap[1] - overlap[0]) / (own[1] - own[0]), 1.0)
    return TenantShare(run.name, unit, work, _energy_j(run, overlap), ratio, _p99(run))


def _work(run: TenantRun, instance: str, unit: str, own: tuple[float, float], overlap: tuple[float, float]) -> float:
    """Return work in the overlap: all work of the phase if the overlap is the whole phase, else interpolated.

    The ledger knows the work of the phase; without work by phase it is the work that was not yet done at its start.
    """
    where = {"run_id": run.report.run_id, "instance": instance, "unit": unit}
    done = samples(run.series.ledger, m.RUN_PHASE_WORK, phase=MEASURE, **where)
    if len(done):
        before, after = 0.0, float(done.value.max())
    else:
        done = samples(run.series.ledger, m.RUN_WORK, **where)
        earlier = done.value[done.t <= own[0]]
        before, after = (float(earlier[-1]) if len(earlier) else 0.0), float(done.value.max(initial=0.0))
    if overlap[1] - overlap[0] >= _ALL_OF_PHASE * (own[1] - own[0]):
        return after - before
    inside = done.between(*own) if run.has_comparable_samples else Samples(done.t[:0], done.value[:0])
    return rise_between(inside, overlap, ((own[0], before), (own[1], after)))


def _energy_j(run: TenantRun, overlap: tuple[float, float]) -> float | None:
    """Return the energy attributed to the run on its GPUs; None without attribution, or if clocks differ."""
    where = {"run_id": run.report.run_id, "component": "gpu", "policy": POLICY}
    rows = rows_of(run.series.ledger, m.RUN_ATTRIBUTED_ENERGY, **where)
    lines = {(i, d): clean(of_device.t, of_device.value) for (i, d), of_device in rows.groups("instance", "device")}
    if not lines or not run.has_comparable_samples:
        return None
    return math.fsum(rise_between(line, overlap, _edges(run, i, line)) for (i, _), line in lines.items())


def _edges(run: TenantRun, instance: str, line: Samples) -> tuple[tuple[float, float], ...]:
    """Return the known energy at start and end of the run, between scrapes."""
    mine = {"run_id": run.report.run_id, "instance": instance}
    begins = [(row.value, 0.0) for row in last(run.frames.ledger, m.RUN_START, **mine)]
    ends = [(row.value, float(line.value[-1])) for row in last(run.frames.ledger, m.RUN_END, **mine)]
    return (*begins, *ends)


def _p99(run: TenantRun) -> Mapping[str, float]:
    rows = last(run.frames.ledger, m.RUN_RESULT, run_id=run.report.run_id)
    return {row.labels["name"]: row.value for row in rows if row.labels["name"].endswith("_seconds_p99")}
