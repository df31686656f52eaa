"""Runs of a study with the samples it needs: variability, tenants, sweeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.assess import run as assess
from analyzer.energy.phases import run_phase_spans
from analyzer.energy.throttling import read_spans, within
from analyzer.model.catalog import ScrapedRun
from analyzer.model.interval import Interval, total
from analyzer.model.report import Report
from analyzer.model.sample_table import RunFrames, SampleTable, join_tables, last, samples
from analyzer.model.samples import sample_median
from analyzer.model.timeline import windows
from analyzer.sources.base import SampleSource
from analyzer.sources.downsample import plan_buckets
from analyzer.sources.fetch import SeriesRequest, fetch_random_samples, fetch_signals
from analyzer.sources.runs.find import load_runs
from analyzer.sources.runs.load import Clock
from analyzer.studies import tenant_overlap
from analyzer.studies.tenant_overlap import TenantRun
from analyzer.studies.tenants import SoloRun
from analyzer.studies.variability import GpuRun
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric
from exporter.contract.work import unit_of_one

_MEASURE = "measure"
_THROUGHOUT = (m.RUN_PHASE_WORK, m.RUN_WORK, m.RUN_WORK_TIMESTAMP, m.RUN_ATTRIBUTED_ENERGY)
_NAMED = 8
_NEAR_S = 60.0
_MORE: tuple[tuple[Metric, dict[str, str]], ...] = (
    (m.GPU_CLOCK_EVENT_SECONDS, {}),
    (m.GPU_TEMPERATURE, {"sensor": "gpu"}),
    (m.GPU_CLOCK, {"domain": "sm"}),
    (m.GPU_UTILIZATION, {"engine": "memory"}),
    (m.GPU_MEMORY_USED, {}),
)
_OF_LONG: tuple[tuple[Metric, dict[str, str]], ...] = ((m.GPU_POWER, {}), (m.GPU_UTILIZATION, {"engine": "gpu"}))
_JUDGED = (m.GPU_POWER, m.GPU_UTILIZATION, m.GPU_CLOCK)


@dataclass(frozen=True, slots=True)
class VariedQuantity:
    """Quantity of a run whose variation is wanted, and its unit of work, the run's primary one if None."""

    name: str
    unit: str | None = None


def _with_unit(report: Report, unit: str | None) -> Report:
    """Return the report with the work in this unit only; unchanged for None."""
    return report if unit is None else replace(report, work=tuple(one for one in report.work if one.unit == unit))


class MixedQuantityError(ValueError):
    """Runs whose values have different units, or whose GPUs are of different models."""


def variability_rows(
    source: SampleSource, all_frames: Sequence[RunFrames], of: VariedQuantity, by: str, log: Callable[[str], None]
) -> tuple[list[GpuRun], str]:
    """Return the runs for `analyzer.studies.variability`, and the unit of their values.

    Runs on several GPUs, with an outcome other than ok, or without the value are left out and logged. Raises
    MixedQuantityError.
    """
    found = []
    units: defaultdict[str, list[str]] = defaultdict(list)
    models: defaultdict[str, list[str]] = defaultdict(list)
    scopes: defaultdict[str, list[str]] = defaultdict(list)
    for frames in all_frames:
        try:
            report = _with_unit(assess.assess(frames), of.unit)
        except assess.NoEnergyError as error:
            log(f"left out: {error}")
            continue
        valued = None if of.unit and not report.work else _value(report, of.name)
        if report.outcome != "ok" or len(report.gpus) != 1 or valued is None:
            log(f"left out: run {report.run_id}: {_reason(report, of.name)}")
            continue
        value, unit = valued
        device = report.gpus[0]
        units[unit].append(report.run_id)
        if of.name in ("time", "energy", "power"):
            scopes[_scope(report)].append(report.run_id)
        models[device.name or "unknown GPU"].append(report.run_id)
        comparable = not any(finding.code == "clock_apart" for finding in report.findings)
        covariates = _covariates(source, frames, report) if comparable else {}
        gpu = f"{device.instance} {device.device}".strip()
        found.append(GpuRun(gpu, value, report.labels.get(by, ""), covariates, device.label, report.run_id))
    for kinds, remedy in (
        (units, "select runs with --unit"),
        (models, "use a separate experiment for each model"),
        (scopes, "a phase shorter than 1 s has no energy, use more iterations"),
    ):
        if len(kinds) > 1:
            named = " and ".join(f"{kind} ({_some(run_ids)})" for kind, run_ids in sorted(kinds.items()))
            raise MixedQuantityError(f"the runs cannot be pooled: {named}; {remedy}")
    return found, next(iter(units), "")


def _scope(report: Report) -> str:
    """Return the part of the run to which rate and energy per unit refer."""
    names = report.work[0].phases if report.work else ()
    return f"in {' and '.join(names)}" if names else "of the whole run"


def _some(run_ids: Sequence[str]) -> str:
    return ", ".join(run_ids[:3]) + (f" and {len(run_ids) - 3} more" if len(run_ids) > 3 else "")


def _reason(report: Report, of: str) -> str:
    if report.outcome != "ok":
        return report.outcome or "not ended"
    return f"no {of}" if len(report.gpus) == 1 else f"on {len(report.gpus)} GPUs"


def _value(report: Report, of: str) -> tuple[float, str] | None:
    work = report.work[0] if report.work else None
    power = _working_power_w(report)
    if of == "time":
        if work and work.per_second:
            return 1 / work.per_second, f"seconds per {unit_of_one(work.unit)}"
        return (report.duration_s, "seconds") if report.duration_s > 0 else None
    if of == "energy":
        if work and work.energy_per_unit and work.energy_per_unit.value > 0:
            return work.energy_per_unit.value, f"joules per {unit_of_one(work.unit)}"
        return (report.headline.value, "joules") if report.headline and report.headline.value > 0 else None
    if of == "power":
        return (power.value, "watts, mean") if power and power.value > 0 else None
    value = report.results.get(of)
    return (value, of) if value is not None and value > 0 else None


def _working_power_w(report: Report) -> Interval | None:
    """Return the mean power of the GPUs in the phases of the work; of the whole run if there are none."""
    names = _working_phases(report)
    inside = [phase for phase in report.phases if phase.name in names and "gpu" in phase.energy]
    seconds = sum(phase.duration_s for phase in inside)
    if len(inside) == len(names) and seconds > 0:
        return total(phase.energy["gpu"] for phase in inside).scaled(1 / seconds)
    return report.mean_power_w


def _working_phases(report: Report) -> tuple[str, ...]:
    """Return the phases in which the primary unit of work was done, else the phase `measure`."""
    if report.work and report.work[0].phases:
        return report.work[0].phases
    return tuple(phase.name for phase in report.phases if phase.name == _MEASURE)


def _covariates(source: SampleSource, frames: RunFrames, report: Report) -> dict[str, float]:
    """Return medians over the phases of the work, over the whole run if there are none."""
    device, names = report.gpus[0], _working_phases(report)
    where = {"instance": device.instance} if device.instance else {}
    run_window = windows(frames.ledger, frames.run_id)[device.instance]
    spans = run_phase_spans(frames.ledger, frames.run_id, device.instance)
    inside = [(span.start_s, span.end_s) for span in spans if span.phase in names]
    inside = inside or [(run_window.start_s, run_window.end_s)]
    window = inside[0][0], inside[-1][1]
    table = source.fetch([m.GPU_CLOCK, m.GPU_TEMPERATURE, m.GPU_POWER], {**where, "uuid": device.device}, *window)
    found = {}
    for name, metric, more in (
        ("sm_clock_hertz", m.GPU_CLOCK, {"domain": "sm"}),
        ("memory_clock_hertz", m.GPU_CLOCK, {"domain": "memory"}),
        ("temperature_celsius", m.GPU_TEMPERATURE, {"sensor": "gpu"}),
        ("power_watts", m.GPU_POWER, {}),
    ):
        rows = within(samples(table, metric, **more), inside if metric is m.GPU_POWER else read_spans(inside))
        found[name] = sample_median(rows.value) if len(rows) else float("nan")
    return found


def load_tenant_runs(
    source: SampleSource,
    sightings: Sequence[ScrapedRun],
    clock: Clock,
    log: Callable[[str], None],
    unit: str | None = None,
) -> list[TenantRun]:
    """Load runs with their reports, with the work in `unit` only; runs with another outcome than ok are left out."""
    found = []
    for one, frames in zip(sightings, load_runs(source, list(sightings), clock, log), strict=True):
        try:
            report = _with_unit(assess.assess(frames), unit)
        except assess.NoEnergyError as error:
            log(f"left out: {error}")
            continue
        if report.outcome != "ok":
            log(f"left out: run {report.run_id}: {report.outcome or 'not ended'}")
            continue
        found.append(TenantRun(frames, report, _throughout(source, frames, one)))
    return found


def _throughout(source: SampleSource, frames: RunFrames, one: ScrapedRun) -> RunFrames:
    series = source.fetch(_THROUGHOUT, {"run_id": one.run_id}, one.first_s, one.last_s)
    return replace(frames, ledger=series)


def choose_solo_runs(
    steps: Iterable[Sequence[TenantRun]], others: Sequence[TenantRun], named: Mapping[str, Sequence[TenantRun]]
) -> dict[str, SoloRun]:
    """Return the solo run of each tenant: one of `named`, else of its solo steps, else with its name as label `case`.

    If there are several, the one with the median rate is used.
    """
    steps = list(steps)
    found: dict[str, list[SoloRun]] = {}
    for name in {run.name for step in steps for run in step} | set(named):
        by_step = [step[0] for step in steps if len(step) == 1 and step[0].name == name]
        by_case = [run for run in others if run.report.labels.get("case") == name]
        runs = named.get(name) or by_step or by_case
        known = [one for run in runs if (one := tenant_overlap.solo_run(run))]
        if known:
            found[name] = known
    return {name: sorted(known, key=lambda one: one.rate)[len(known) // 2] for name, known in found.items()}


def with_throttling_samples(source: SampleSource, frames: RunFrames) -> RunFrames:
    """Add the GPUs' clocks, clock events, temperatures and memory use.

    For a long run also replace power and utilization: their downsampled series keep every peak, which would bias
    percentiles and means.
    """
    begins = last(frames.ledger, m.RUN_START, run_id=frames.run_id)
    ends_s = [row.value for row in last(frames.ledger, m.RUN_END, run_id=frames.run_id)] or [row.t for row in begins]
    edges_s = min(row.value for row in begins), max(ends_s)
    span_s = edges_s[0] - _NEAR_S, edges_s[1] + _NEAR_S
    wheres = [{"instance": instance} if instance else {} for instance in sorted({row.instance for row in begins})]
    if not frames.exact:
        more = [_wanted(source.fetch([metric for metric, _ in _MORE], where, *span_s)) for where in wheres]
        return replace(frames, raw=join_tables([frames.raw, *more]))
    kept = frames.raw.take(~frames.raw.where("metric", [m.GPU_POWER.name, m.GPU_UTILIZATION.name]))
    return replace(frames, raw=join_tables([kept, *(_of_long(source, where, span_s, edges_s) for where in wheres)]))


def _of_long(
    source: SampleSource, where: dict[str, str], span_s: tuple[float, float], edges_s: tuple[float, float]
) -> SampleTable:
    """Return peaks of temperature and memory, and random samples of quantities with percentiles or means."""
    planned = plan_buckets(*span_s, edges_s)
    parts = []
    for metric, labels in (*_MORE, *_OF_LONG):
        request = SeriesRequest([metric], where | labels, span_s)
        parts.append(
            fetch_random_samples(source, request) if metric in _JUDGED else fetch_signals(source, request, planned)
        )
    return join_tables(parts)


def _wanted(table: SampleTable) -> SampleTable:
    """Return the table without series of other label values."""
    kept = np.ones(len(table), dtype=bool)
    for metric, labels in _MORE:
        for label, text in labels.items():
            kept &= ~table.where("metric", [metric.name]) | table.where(label, [text])
    return table.take(kept)
