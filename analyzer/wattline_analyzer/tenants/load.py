"""Runs of tenants with the samples of their whole time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from wattline.contract import metrics as m
from wattline_analyzer.core.run_catalog import ScrapedRun
from wattline_analyzer.core.run_report import with_unit
from wattline_analyzer.core.runs.find import load_runs
from wattline_analyzer.core.runs.load import Clock
from wattline_analyzer.core.sources.base import SampleSource
from wattline_analyzer.report import assess
from wattline_analyzer.tenants import overlap as tenant_overlap
from wattline_analyzer.tenants.figures import SoloRun
from wattline_analyzer.tenants.overlap import TenantRun

_THROUGHOUT = (m.RUN_PHASE_WORK, m.RUN_WORK, m.RUN_WORK_TIMESTAMP, m.RUN_ATTRIBUTED_ENERGY)


def load_tenant_runs(
    source: SampleSource,
    sightings: Sequence[ScrapedRun],
    clock: Clock,
    log: Callable[[str], None],
    unit: str | None = None,
) -> list[TenantRun]:
    """Load runs with their reports, with the work in `unit` only; runs with another outcome than ok
    are left out.
    """
    found = []
    for one, recorded in zip(
        sightings, load_runs(source, list(sightings), clock, log), strict=True
    ):
        try:
            report = with_unit(assess.assess(recorded), unit)
        except assess.NoEnergyError as error:
            log(f"left out: {error}")
            continue
        if report.outcome != "ok":
            log(f"left out: run {report.run_id}: {report.outcome or 'not ended'}")
            continue
        series = source.fetch(_THROUGHOUT, {"run_id": one.run_id}, one.first_s, one.last_s)
        found.append(TenantRun(recorded.scrapes, report, recorded.scrapes.once(series)))
    return found


def choose_solo_runs(
    steps: Iterable[Sequence[TenantRun]],
    others: Sequence[TenantRun],
    named: Mapping[str, Sequence[TenantRun]],
) -> dict[str, SoloRun]:
    """Return the solo run of each tenant: one of `named`, else of its solo steps, else with its
    name as label `case`.

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
    return {
        name: sorted(known, key=lambda one: one.rate)[len(known) // 2]
        for name, known in found.items()
    }
