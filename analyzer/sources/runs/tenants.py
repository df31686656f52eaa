"""Runs of tenants with all samples of their work, and their solo runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from analyzer.assess import run as assess
from analyzer.model.samples import RunFrames
from analyzer.model.selection import Selector, Sighting
from analyzer.sources.base import SampleSource
from analyzer.sources.runs import select as selected
from analyzer.sources.runs.load import Clock
from analyzer.studies import tenant_overlap
from analyzer.studies.tenant_overlap import TenantRun
from analyzer.studies.tenants import SoloRun
from exporter.contract import metrics as m

_THROUGHOUT = (m.RUN_PHASE_SECONDS, m.RUN_PHASE_WORK, m.RUN_WORK, m.RUN_ATTRIBUTED_ENERGY)


def load_tenant_runs(
    source: SampleSource, sightings: Sequence[Sighting], clock: Clock, log: Callable[[str], None]
) -> list[TenantRun]:
    """Load runs with their reports; runs with an outcome other than ok are left out and logged."""
    found = []
    for one, frames in zip(sightings, selected.load_runs(source, list(sightings), clock, log), strict=True):
        try:
            report = assess.assess(frames)
        except assess.NoEnergyError as error:
            log(f"left out: {error}")
            continue
        if report.outcome != "ok":
            log(f"left out: run {report.run_id}: {report.outcome or 'not ended'}")
            continue
        found.append(TenantRun(frames, report, _throughout(source, frames, one)))
    return found


def _throughout(source: SampleSource, frames: RunFrames, one: Sighting) -> RunFrames:
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


def find_tenant_runs(
    source: SampleSource, wanted: Selector, since_s: float, clock: Clock, log: Callable[[str], None]
) -> list[TenantRun]:
    return load_tenant_runs(source, selected.find_runs(source, wanted, since_s, clock.now()), clock, log)
