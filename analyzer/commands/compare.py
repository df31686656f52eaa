"""`analyzer compare`: runs, or groups of runs by their labels, beside each other."""

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
    from analyzer.sources.base import Source
    from analyzer.studies.compare import Group


@reads
def compare(
    connection: Connection,
    groups: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_GROUP...", help="A run's id, or labels as model=a,mps=true; the first is the base."
        ),
    ],
    form: FormatOption = Format.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    force: Annotated[
        bool, typer.Option(help="Pool runs though hosts, drivers, GPUs, units or boundaries differ.")
    ] = False,
    carbon: Annotated[
        float | None, typer.Option(min=0, metavar="G/KWH", help="Add emissions at this intensity, gCO2eq/kWh.")
    ] = None,
) -> None:
    """Energy, energy per unit, duration, rate and emissions, and how sure the differences are."""
    since_s = seconds(since)
    from analyzer.model.selection import SelectionError, selector
    from analyzer.output.studies import compare as compared
    from analyzer.output.view import show
    from analyzer.studies import compare as comparison

    try:
        wanted = [selector(text) for text in groups]
    except SelectionError as error:
        raise typer.BadParameter(str(error)) from error
    if len(wanted) < 2:
        raise typer.BadParameter("one run or group alone compares with nothing; give two or more")
    with connection.open() as chosen:
        read = [_group(chosen, one, since_s, carbon) for one in wanted]
    try:
        found = comparison.compare(read, force=force)
    except comparison.MixedError as error:
        fail(f"{error}; compare like with like, or pool them all the same with --force")
    except comparison.TwiceError as error:
        raise typer.BadParameter(f"{error}; give groups that have no run in common") from error
    show(compared.view(found), form)


def _group(source: Source, wanted: Selector, since_s: float, carbon: float | None) -> Group:
    """Failed and interrupted runs are left out of a group; a run that is named stays."""
    from analyzer.assess import run as assess
    from analyzer.model.user_inputs import Given
    from analyzer.sources.runs import runs
    from analyzer.sources.runs import select as selected
    from analyzer.studies import compare as comparison

    named = "run_id" in wanted.equal
    members = []
    clock = runs.Clock(time.time, time.sleep)
    for frames in selected.load_all(source, selected.select(source, wanted, since_s, clock.now()), clock, say):
        try:
            report = assess.assess(frames, Given(grams_per_kwh=carbon))
        except assess.NoEnergyError as error:
            say(f"left out: {error}")
            continue
        if not named and (report.outcome != "ok" or report.ended_at_s is None):
            say(f"left out: run {report.run_id}, which {report.outcome or 'has not ended'}")
            continue
        members.append(comparison.member(frames, report))
    if not members:
        fail(f"none of the runs of {wanted.text} ended well with an energy; see: analyzer runs")
    return comparison.Group(wanted.text, tuple(members))
