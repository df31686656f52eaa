"""From the frames of tenants' runs to what each did while all were at work. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analyzer.energy.phases import at, span
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, Samples, last, of, samples
from analyzer.studies.tenants import Alone, Share, Together
from exporter.contract import metrics as m

MEASURE = "measure"
POLICY = "idle_shared"
"""The tenants bear the idle power together, so that their joules add up to the GPU's."""
_LEAST_SAMPLES = 10


@dataclass(frozen=True, slots=True)
class TenantRun:
    """A run with its report; `series` are all samples of its work, phases and attributed energy."""

    frames: RunFrames
    report: Report
    series: RunFrames

    @property
    def name(self) -> str:
        return self.report.labels.get("tenant", "")


def side_by_side(runs: Sequence[TenantRun]) -> list[list[TenantRun]]:
    """Runs that were on at the same time on the same instances, in the order of their begins."""
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


def measured(run: TenantRun) -> tuple[float, float] | None:
    """When its phase measure was on, by the clock of the samples; the slowest and the quickest of several instances
    agree on what all of them measured.
    """
    spans = [found for instance in run.report.instances if (found := span(_phase(run, instance))) is not None]
    return (max(begin for begin, _ in spans), min(end for _, end in spans)) if spans else None


def together(step: Sequence[TenantRun]) -> Together | str:
    """The step over its overlap, or why nothing can be said of it."""
    names = [run.name for run in step]
    if len(set(names)) < len(names):
        return f"two tenants are called {next(name for name in names if names.count(name) > 1)}"
    spans = [measured(run) for run in step]
    known = [one for one in spans if one is not None]
    if len(known) < len(spans):
        missing = next(run for run, one in zip(step, spans, strict=True) if one is None)
        return f"run {missing.report.run_id} has no phase {MEASURE}"
    begin_s, end_s = max(begin for begin, _ in known), min(end for _, end in known)
    if end_s <= begin_s:
        return f"{' and '.join(names)} never measured at the same time"
    if min(_scrapes(run, begin_s, end_s) for run in step) < _LEAST_SAMPLES:
        return f"the overlap of {end_s - begin_s:.1f} s has fewer than {_LEAST_SAMPLES} scrapes; let it measure longer"
    shares = tuple(_share(run, one, (begin_s, end_s)) for run, one in zip(step, known, strict=True))
    first = step[0].report.labels
    return Together(first.get("case", ""), first.get("repeat", ""), first.get("mps") == "true", end_s - begin_s, shares)


def alone(run: TenantRun) -> Alone | None:
    """None for a run that did no work."""
    work = run.report.work[0] if run.report.work else None
    if work is None or not work.per_second:
        return None
    gpus = run.report.gpus
    idle_w = [device.idle_power_w.value for device in gpus if device.idle_power_w]
    energy_j = work.energy_per_unit.value if work.energy_per_unit else None
    idle_power_w = math.fsum(idle_w) if gpus and len(idle_w) == len(gpus) else None
    return Alone(work.per_second, energy_j, idle_power_w, _p99(run), work.unit)


def _phase(run: TenantRun, instance: str) -> Samples:
    where = {"run_id": run.report.run_id, "instance": instance, "phase": MEASURE}
    return samples(run.series.ledger, m.RUN_PHASE_SECONDS, **where)


def _scrapes(run: TenantRun, begin_s: float, end_s: float) -> int:
    return min(len(_phase(run, instance).between(begin_s, end_s)) for instance in run.report.instances)


def _share(run: TenantRun, own: tuple[float, float], overlap: tuple[float, float]) -> Share:
    unit = run.report.work[0].unit if run.report.work else ""
    work = math.fsum(_work(run, instance, unit, own, overlap) for instance in run.report.instances)
    ratio = min((overlap[1] - overlap[0]) / (own[1] - own[0]), 1.0)
    return Share(run.name, unit, work, _energy_j(run, overlap), ratio, _p99(run))


def _work(run: TenantRun, instance: str, unit: str, own: tuple[float, float], overlap: tuple[float, float]) -> float:
    """Work of the phase where it is known by phase: then nothing was done at its begin, and all at its end."""
    where = {"run_id": run.report.run_id, "instance": instance, "unit": unit}
    by_phase = samples(run.series.ledger, m.RUN_PHASE_WORK, phase=MEASURE, **where)
    if len(by_phase):
        inside = by_phase.between(*own)
        return at(inside, overlap, ((own[0], 0.0), (own[1], float(by_phase.value.max()))))
    return at(samples(run.series.ledger, m.RUN_WORK, **where), overlap)


def _energy_j(run: TenantRun, overlap: tuple[float, float]) -> float | None:
    """Attributed to the run on its GPUs; None where the exporter does not attribute."""
    where = {"run_id": run.report.run_id, "component": "gpu", "policy": POLICY}
    rows = of(run.series.ledger, m.RUN_ATTRIBUTED_ENERGY, **where)
    keys = [(str(i), str(d)) for i, d in rows[["instance", "device"]].drop_duplicates().to_numpy()]
    lines = {
        (i, d): samples(run.series.ledger, m.RUN_ATTRIBUTED_ENERGY, **where, instance=i, device=d) for i, d in keys
    }
    return math.fsum(at(line, overlap, _edges(run, i, line)) for (i, _), line in lines.items()) if lines else None


def _edges(run: TenantRun, instance: str, line: Samples) -> tuple[tuple[float, float], ...]:
    """Nothing at the run's begin and all at its end, which no scrape hits; not where a clock is wrong."""
    if not len(line) or any(finding.code == "clock_apart" for finding in run.report.findings):
        return ()
    mine = {"run_id": run.report.run_id, "instance": instance}
    begins = [(row.value, 0.0) for row in last(run.frames.ledger, m.RUN_START, **mine)]
    ends = [(row.value, float(line.value[-1])) for row in last(run.frames.ledger, m.RUN_END, **mine)]
    return (*begins, *ends)


def _p99(run: TenantRun) -> Mapping[str, float]:
    rows = last(run.frames.ledger, m.RUN_RESULT, run_id=run.report.run_id)
    return {row.labels["name"]: row.value for row in rows if row.labels["name"].endswith("_seconds_p99")}
