"""`analyzer recommend`: which power limit, or clock, to set by the runs of a sweep."""

from __future__ import annotations

import time
from pathlib import Path
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
    write_into,
)
from analyzer.output.compatible.options import SweepTool, SweepToolsOption, check
from analyzer.output.form import Format

if TYPE_CHECKING:
    from analyzer.sources.base import Source
    from analyzer.studies.advice import Advice
    from analyzer.studies.sweep import SweepRun

OBJECTIVES = ("energy", "energy-per-unit", "edp", "ed2p", "zeus", "units-per-joule")


@reads
def recommend(  # a command's options are its arguments
    connection: Connection,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="The runs of that experiment, or plan.")
    ] = None,
    run_id: Annotated[list[str] | None, typer.Option(metavar="ID", help="These runs instead; repeatable.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(metavar="|".join(OBJECTIVES), help="What shall be best; else energy per unit, if work is known."),
    ] = None,
    unit: Annotated[str | None, typer.Option(help="Of work: generated_tokens, steps, …")] = None,
    max_slowdown: Annotated[
        float | None, typer.Option(min=0, metavar="PERCENT", help="How much slower than at the highest cap.")
    ] = None,
    slo: Annotated[
        list[str] | None, typer.Option(metavar="RESULT=MOST", help="Like ttft_seconds_p99=0.5; repeatable.")
    ] = None,
    eta: Annotated[float, typer.Option(min=0, max=1, help="Of zeus: the weight of energy against time.")] = 0.5,
    joint: Annotated[
        list[str] | None, typer.Option(metavar="LABEL", help="Choose this along with the cap, like batch_size.")
    ] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=VALUE", help="With --joint: what is compared with.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.png, sweep.csv (a row a run) and recommendation.json.")
    ] = None,
    compatible: SweepToolsOption = None,
    form: FormatOption = Format.TABLE,
    since: SinceOption = DEFAULT_SINCE,
) -> None:
    """Which power limit or clock to set, by the runs of a sweep; "no clear difference" is an answer."""
    if bool(experiment) == bool(run_id):
        raise typer.BadParameter("give --experiment NAME, or --run-id of each run of the sweep")
    if objective is not None and objective not in OBJECTIVES:
        raise typer.BadParameter(f"--objective is one of {', '.join(OBJECTIVES)}, not {objective!r}")
    check(compatible, out)
    slos, compared_with = _limits(slo or []), _pairs("--baseline", baseline or [])
    since_s = seconds(since)
    from analyzer.studies import recommend as advisor
    from analyzer.studies.objective import Objective, Question, QuestionError
    from analyzer.studies.sweep import sweeps

    named = Objective(objective) if objective else None
    slowdown = None if max_slowdown is None else max_slowdown / 100
    question = Question(named, unit, slowdown, slos, eta, compared_with, seed)
    with connection.open() as chosen:
        runs = _runs(chosen, experiment, run_id or [], since_s, joint or [])
        name = chosen.name
    found = sweeps(runs, joint or [])
    if not found:
        fail(
            "none of the runs can be compared: all are idle, or warm-up, or without energy of a GPU; see: analyzer runs"
        )
    try:
        advices = [advisor.advise(sweep, question) for sweep in found]
    except QuestionError as error:
        fail(str(error))
    _print(advices, name, form)
    if out is not None:
        _write(out, advices, name, for_others=bool(compatible))


def _limits(texts: list[str]) -> dict[str, float]:
    try:
        return {name: float(most) for name, most in _pairs("--slo", texts).items()}
    except ValueError as error:
        raise typer.BadParameter(f"--slo: {error}; give RESULT=NUMBER, like ttft_seconds_p99=0.5") from error


def _pairs(option: str, texts: list[str]) -> dict[str, str]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{option} {text}: give NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _runs(
    source: Source, experiment: str | None, run_ids: list[str], since_s: float, joint: list[str]
) -> list[SweepRun]:
    """A run that is no part of any comparison is said on stderr, with the reason."""
    from analyzer.assess import run as assess
    from analyzer.sources.runs import runs, sweeps
    from analyzer.sources.runs import select as selected
    from analyzer.studies import sweep

    clock = runs.Clock(time.time, time.sleep)
    seen_s = sweeps.seen(source, experiment, since_s, clock.now()) if experiment else {}
    found = []
    for number, run_id in enumerate(seen_s or run_ids, 1):
        if number % 20 == 0:
            say(f"{number} of {len(seen_s or run_ids)} runs read")
        frames = (
            selected.load_seen(source, run_id, seen_s[run_id], clock, say)
            if run_id in seen_s
            else runs.load(source, run_id, since_s, clock, say)
        )
        try:
            run = sweep.of(sweeps.with_throttling(source, frames), assess.assess(frames), joint)
        except (assess.NoEnergyError, ValueError) as error:
            say(f"run {frames.run_id} is left out: {error}")
            continue
        if run is not None:
            found.append(run)
    return found


def _print(advices: list[Advice], source: str, form: Format) -> None:
    from analyzer.output import documents as formats
    from analyzer.output.sections import run as tables
    from analyzer.output.studies import recommend_formats as advice_formats

    if form is Format.TABLE:
        tables.console(plain_columns=140).print(advice_formats.tables(advices))
    elif form is Format.CSV:
        print(advice_formats.runs_csv(advices))
    else:
        write = formats.as_json if form is Format.JSON else formats.as_yaml
        print(write(advice_formats.document(advices, source)))


def _write(folder: Path, advices: list[Advice], source: str, *, for_others: bool) -> None:
    from analyzer.output import documents as formats
    from analyzer.output.compatible import summary as compatible_summary
    from analyzer.output.plots import sweep as sweep_plot
    from analyzer.output.studies import recommend_formats as advice_formats

    contents = {
        "report.png": sweep_plot.picture(advices),
        "sweep.csv": f"{advice_formats.runs_csv(advices)}\n".encode(),
        "recommendation.json": f"{formats.as_json(advice_formats.document(advices, source))}\n".encode(),
    }
    if for_others:
        summaries = compatible_summary.files([advice.sweep for advice in advices])
        contents |= {f"{SweepTool.GPU_TUNE}/{name}": content for name, content in summaries.items()}
    write_into(folder, contents)
