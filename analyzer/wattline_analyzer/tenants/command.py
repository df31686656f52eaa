"""`analyzer tenants`: effect of jobs on each other that ran side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    UnitOption,
    WaitOption,
    duration_option,
)
from wattline_analyzer.core.printing import OutputFormat, exit_with_error, print_message

if TYPE_CHECKING:
    from wattline_analyzer.core.run_catalog import Selector
    from wattline_analyzer.tenants.figures import ConcurrentStep
    from wattline_analyzer.tenants.overlap import TenantRun

COMMAND = {
    "name": "tenants",
    "help": "Compare jobs that share a GPU with jobs that run alone.",
    "group": "Compare and decide",
}


@with_option_groups
def tenants_command(
    *,
    experiment: Annotated[
        str, typer.Option(metavar="NAME", help="Label `experiment` of the runs.")
    ],
    solo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPERIMENT|TENANT=RUNS",
            help="Runs of tenants alone: an experiment, or for one tenant a run ID or labels, as "
            "small=case=alone.",
        ),
    ] = None,
    unit: UnitOption = None,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    connection: ConnectionOptions,
) -> None:
    """Compare jobs that share a GPU with the same jobs alone, with and without MPS.

    For each combination: throughput, energy, fairness, the work done relative to jobs alone (STP:
    system throughput), and the mean slowdown of a job (ANTT: average normalized turnaround time).
    """
    since_s = duration_option(since)
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.core.run_catalog import Selector
    from wattline_analyzer.core.runs.find import find_runs
    from wattline_analyzer.core.runs.load import Clock
    from wattline_analyzer.tenants.load import choose_solo_runs, load_tenant_runs
    from wattline_analyzer.tenants.output import tenant_output
    from wattline_analyzer.tenants.overlap import concurrent_runs
    from wattline_analyzer.tenants.summary import summarize_tenants

    clock = Clock(time.time, time.sleep, wait, time.time())
    of_tenant, experiments = _solo_selectors(experiment, solo or [])
    with connection.open() as source:

        def find(selector: Selector) -> list[TenantRun]:
            sightings = find_runs(source, selector, since_s, clock, print_message)
            return load_tenant_runs(source, sightings, clock, print_message, unit)

        found = find(Selector(f"experiment={experiment}", {"experiment": experiment}))
        more = [run for each in experiments for run in find(each)]
        named = {name: find(one) for name, one in of_tenant.items()}
    steps = concurrent_runs([run for run in found if run.name])
    extra = concurrent_runs([run for run in more if run.name])
    solo_runs = choose_solo_runs(
        [*steps, *extra], [run for run in [*found, *more] if not run.name], named
    )
    concurrent = [step for step in steps if len(step) > 1]
    measured = _measured_steps(concurrent)
    if concurrent and not measured:
        exit_with_error(
            f"no figures for the tenants of experiment={experiment}; see the reasons above"
        )
    if not measured:
        exit_with_error(
            f"no tenants of experiment={experiment} were measured at the same time; see: analyzer "
            "runs"
        )
    simulated = any(run.report.simulated for step in concurrent for run in step)
    print_output(
        tenant_output(summarize_tenants(measured, solo_runs)).marked(simulated=simulated), form
    )


def _measured_steps(steps: list[list[TenantRun]]) -> list[ConcurrentStep]:
    from wattline_analyzer.tenants.overlap import concurrent_step

    found = []
    for step in steps:
        one = concurrent_step(step)
        if isinstance(one, str):
            print_message(f"left out: {', '.join(run.report.run_id for run in step)}: {one}")
        else:
            found.append(one)
    return found


def _solo_selectors(
    experiment: str, texts: list[str]
) -> tuple[dict[str, Selector], list[Selector]]:
    """Return the selectors of --solo: by tenant, and of whole experiments."""
    from wattline_analyzer.core.run_catalog import SelectionError, Selector, parse_selector

    of_tenant = {}
    experiments = []
    for text in texts:
        name, equals, runs = text.partition("=")
        try:
            if not equals:
                experiments.append(Selector(f"experiment={text}", {"experiment": text}))
            else:
                one = parse_selector(runs)
                inside = (
                    {}
                    if {"run_id", "experiment"} & one.equal.keys()
                    else {"experiment": experiment}
                )
                of_tenant[name] = Selector(runs, {**inside, **one.equal})
        except SelectionError as error:
            raise typer.BadParameter(f"--solo {text}: {error}") from error
    return of_tenant, experiments
