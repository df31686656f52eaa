"""Runs for the comparison of GPUs, with their covariates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattline.contract import metrics as m
from wattline.contract.work import unit_of_one
from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.conditions import read_spans, samples_within
from wattline_analyzer.core.phases import run_phase_spans
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_report import Report, with_unit
from wattline_analyzer.core.sample_table import samples
from wattline_analyzer.core.samples import sample_median
from wattline_analyzer.core.sources.base import SampleSource
from wattline_analyzer.report import assess
from wattline_analyzer.variability.figures import GpuRun

_MEASURE = "measure"


@dataclass(frozen=True, slots=True)
class VariedQuantity:
    """Quantity of a run whose variation is wanted, and its unit of work, the run's primary one if
    None.
    """

    name: str
    unit: str | None = None


class MixedQuantityError(ValueError):
    """Runs whose values have different units, or whose GPUs are of different models."""


def variability_rows(
    source: SampleSource,
    runs: Sequence[RecordedRun],
    of: VariedQuantity,
    by: str,
    log: Callable[[str], None],
) -> tuple[list[GpuRun], str]:
    """Return the runs for `wattline_analyzer.variability.figures`, and the unit of their values.

    Runs on several GPUs, with an outcome other than ok, or without the value are left out and
    logged. Raises MixedQuantityError.
    """
    found = []
    units: defaultdict[str, list[str]] = defaultdict(list)
    models: defaultdict[str, list[str]] = defaultdict(list)
    scopes: defaultdict[str, list[str]] = defaultdict(list)
    for recorded in runs:
        try:
            report = with_unit(assess.assess(recorded), of.unit)
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
        covariates = _covariates(source, recorded, report) if comparable else {}
        gpu = f"{device.instance} {device.device}".strip()
        found.append(
            GpuRun(gpu, value, report.labels.get(by, ""), covariates, device.label, report.run_id)
        )
    for kinds, remedy in (
        (units, "select runs with --unit"),
        (models, "use a separate experiment for each model"),
        (scopes, "a phase shorter than 1 s has no energy, use more iterations"),
    ):
        if len(kinds) > 1:
            named = " and ".join(
                f"{kind} ({_some(run_ids)})" for kind, run_ids in sorted(kinds.items())
            )
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
        if work and work.energy_per_unit and work.energy_per_unit.number > 0:
            return work.energy_per_unit.number, f"joules per {unit_of_one(work.unit)}"
        return (
            (report.headline.number, "joules")
            if report.headline and report.headline.number > 0
            else None
        )
    if of == "power":
        return (power.number, "watts, mean") if power and power.number > 0 else None
    value = report.results.get(of)
    return (value, of) if value is not None and value > 0 else None


def _working_power_w(report: Report) -> Figure | None:
    """Return the mean power of the GPUs in the phases of the work; of the whole run if there are
    none.
    """
    names = _working_phases(report)
    inside = [phase for phase in report.phases if phase.name in names and "gpu" in phase.energy]
    seconds = sum(phase.duration_s for phase in inside)
    if len(inside) == len(names) and seconds > 0:
        return sum_of_correlated(phase.energy["gpu"] for phase in inside).scaled(1 / seconds)
    return report.mean_power_w


def _working_phases(report: Report) -> tuple[str, ...]:
    """Return the phases in which the primary unit of work was done, else the phase `measure`."""
    if report.work and report.work[0].phases:
        return report.work[0].phases
    return tuple(phase.name for phase in report.phases if phase.name == _MEASURE)


def _covariates(source: SampleSource, recorded: RecordedRun, report: Report) -> dict[str, float]:
    """Return medians over the phases of the work, over the whole run if there are none."""
    device = report.gpus[0]
    names = _working_phases(report)
    where = {"instance": device.instance} if device.instance else {}
    run_window = report.times.windows[device.instance]
    spans = run_phase_spans(recorded.scrapes, device.instance)
    inside = [(span.start_s, span.end_s) for span in spans if span.phase in names]
    inside = inside or [(run_window.start_s, run_window.end_s)]
    window = inside[0][0], inside[-1][1]
    table = source.fetch(
        [m.GPU_CLOCK, m.GPU_TEMPERATURE, m.GPU_POWER], {**where, "uuid": device.device}, *window
    )
    found = {}
    for name, metric, more in (
        ("sm_clock_hertz", m.GPU_CLOCK, {"domain": "sm"}),
        ("memory_clock_hertz", m.GPU_CLOCK, {"domain": "memory"}),
        ("temperature_celsius", m.GPU_TEMPERATURE, {"sensor": "gpu"}),
        ("power_watts", m.GPU_POWER, {}),
    ):
        rows = samples_within(
            samples(table, metric, **more), inside if metric is m.GPU_POWER else read_spans(inside)
        )
        found[name] = sample_median(rows.value) if len(rows) else float("nan")
    return found
