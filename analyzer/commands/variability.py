"""`analyzer variability`: how much the GPUs of an experiment differ at the same work."""

from __future__ import annotations

import time
from collections.abc import Iterable
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
    from analyzer.model.selection import Sighting


@reads
def variability(
    connection: Connection,
    experiment: Annotated[str, typer.Option(help="The runs with this label experiment.")],
    workload: Annotated[str | None, typer.Option(help="Only the runs of this workload.")] = None,
    of: Annotated[
        str, typer.Option(help="time (s per unit of work), energy (J per unit), power (W), or the name of a result.")
    ] = "time",
    by: Annotated[str, typer.Option(metavar="LABEL", help="The label that tells placements apart.")] = "case",
    reference: Annotated[str | None, typer.Option(help="The placement to hold others against.")] = None,
    form: FormatOption = Format.TABLE,
    since: SinceOption = DEFAULT_SINCE,
) -> None:
    """Medians, whisker range, CV between and within GPUs, correlations, outliers, effects of neighbours."""
    since_s = seconds(since)
    from analyzer.model.selection import Selector
    from analyzer.output.studies import variability as varied
    from analyzer.output.view import show
    from analyzer.sources.runs import runs
    from analyzer.sources.runs import select as selected
    from analyzer.sources.runs import variability as varied_runs
    from analyzer.studies import variability as statistics

    equal = {"experiment": experiment} | ({"workload": workload} if workload else {})
    wanted = Selector(" and ".join(f"{name}={text}" for name, text in equal.items()), equal)
    clock = runs.Clock(time.time, time.sleep)
    with connection.open() as chosen:
        sightings = selected.select(chosen, wanted, since_s, clock.now())
        workloads = sorted({one.workload for one in sightings})
        _warn_of_a_sweep(sightings)
        if len(workloads) > 1:
            fail(f"{wanted.text} has runs of {', '.join(workloads)}; name one of them with --workload")
        frames = selected.load_all(chosen, sightings, clock, say)
        rows, what = varied_runs.rows(chosen, frames, of, by, say)
    if not len(rows):
        fail(f"no run of {wanted.text} is on one GPU and has {of}; see: analyzer runs")
    try:
        found = statistics.variability(rows, reference)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    show(varied.view(found, what), form)


def _warn_of_a_sweep(sightings: Iterable[Sighting]) -> None:
    """What caps and clocks do to runs would be taken for how GPUs differ."""
    from analyzer.studies.sweep import SETTINGS

    for label in SETTINGS:
        values = sorted({one.labels.get(label, "none") for one in sightings})
        if len(values) > 1:
            say(
                f"the runs differ in {label} ({', '.join(values)}), which counts as variation here: make each "
                "setting an experiment of its own; between settings see: analyzer recommend"
            )
