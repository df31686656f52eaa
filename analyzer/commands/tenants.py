"""`analyzer tenants`: what jobs that ran side by side cost each other."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.connection import (
    DEFAULT_SINCE,
    Connection,
    FormatOption,
    SinceOption,
    fail,
    reads,
    say,
    seconds,
)
from analyzer.output.form import Format

if TYPE_CHECKING:
    from analyzer.model.selection import Selector
    from analyzer.studies.tenant_overlap import TenantRun
    from analyzer.studies.tenants import Together


@reads
def tenants(
    connection: Connection,
    experiment: Annotated[str, typer.Option(help="The runs with this label experiment.")],
    solo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPERIMENT|TENANT=RUNS",
            help="Where runs alone are: an experiment, or of a tenant a run's id or labels, as small=case=alone.",
        ),
    ] = None,
    form: FormatOption = Format.TABLE,
    since: SinceOption = DEFAULT_SINCE,
) -> None:
    """Over the overlap: throughput, STP, ANTT, fairness, energy against running alone, MPS against none."""
    since_s = seconds(since)
    from analyzer.model.selection import Selector
    from analyzer.output.studies import tenants as tenancy
    from analyzer.output.view import show
    from analyzer.sources.runs import runs
    from analyzer.sources.runs import tenants as tenant_runs
    from analyzer.studies.tenant_overlap import side_by_side
    from analyzer.studies.tenant_summary import summary

    clock = runs.Clock(time.time, time.sleep)
    of_tenant, experiments = _solo(experiment, solo or [])
    with connection.open() as chosen:
        wanted = Selector(f"experiment={experiment}", {"experiment": experiment})
        found = tenant_runs.of_selector(chosen, wanted, since_s, clock, say)
        more = [run for each in experiments for run in tenant_runs.of_selector(chosen, each, since_s, clock, say)]
        named = {name: tenant_runs.of_selector(chosen, one, since_s, clock, say) for name, one in of_tenant.items()}
    steps = side_by_side([run for run in found if run.name])
    extra = side_by_side([run for run in more if run.name])
    alone = tenant_runs.alone([*steps, *extra], [run for run in [*found, *more] if not run.name], named)
    made = _made([step for step in steps if len(step) > 1])
    if not made:
        fail(f"no tenants of experiment={experiment} measured at the same time; see: analyzer runs")
    show(tenancy.view(summary(made, alone)), form)


def _made(steps: list[list[TenantRun]]) -> list[Together]:
    from analyzer.studies.tenant_overlap import together

    found = []
    for step in steps:
        one = together(step)
        if isinstance(one, str):
            say(f"left out: {', '.join(run.report.run_id for run in step)}: {one}")
        else:
            found.append(one)
    return found


def _solo(experiment: str, given: list[str]) -> tuple[dict[str, Selector], list[Selector]]:
    from analyzer.model.selection import SelectionError, Selector, selector

    of_tenant, experiments = {}, []
    for text in given:
        name, equals, runs = text.partition("=")
        try:
            if not equals:
                experiments.append(Selector(f"experiment={text}", {"experiment": text}))
            else:
                one = selector(runs)
                inside = {} if {"run_id", "experiment"} & one.equal.keys() else {"experiment": experiment}
                of_tenant[name] = Selector(runs, {**inside, **one.equal})
        except SelectionError as error:
            raise typer.BadParameter(f"--solo {text}: {error}") from error
    return of_tenant, experiments
