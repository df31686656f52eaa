"""`analyzer recommend`: best power limit, or clock, by the runs of a sweep."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    WaitOption,
    duration_option,
)
from wattline_analyzer.core.printing import (
    OutputFormat,
    exit_with_error,
    print_message,
    write_files,
)
from wattline_analyzer.report.compatible.options import (
    SweepTool,
    SweepToolsOption,
    check_out_options,
)

if TYPE_CHECKING:
    from wattline_analyzer.core.sources.base import SampleSource
    from wattline_analyzer.recommend.objective import Advice
    from wattline_analyzer.recommend.sweep import SweepRun

COMMAND = {
    "name": "recommend",
    "help": "Recommend a power limit or clock from the runs of a sweep.",
    "group": "Compare and decide",
}

OBJECTIVES = ("energy", "energy-per-unit", "edp", "ed2p", "zeus", "units-per-joule")


@with_option_groups
def recommend_command(  # a command's options are its arguments
    *,
    experiment: Annotated[
        str | None, typer.Option(metavar="NAME", help="Experiment, or plan, whose runs to compare.")
    ] = None,
    run_id: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="ID of a run, in place of --experiment; repeatable."),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(OBJECTIVES),
            help="Quantity to optimize (default: energy per unit if the work is known, else "
            "energy).",
        ),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="UNIT", help="Unit of work: steps, runs, …")
    ] = None,
    max_slowdown: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="PERCENT",
            help="Longest extra time per unit of work against the highest power limit, in % "
            "(default: 10; inf: any).",
        ),
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RESULT=MOST",
            help="Upper limit of a result, e.g. ttft_seconds_p99=0.5; repeatable.",
        ),
    ] = None,
    eta: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            metavar="WEIGHT",
            help="Weight of energy against time for --objective zeus.",
        ),
    ] = 0.5,
    joint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL", help="Label to choose together with the power limit, e.g. batch_size."
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=VALUE", help="Value of a --joint label in the baseline."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for report.png, sweep.csv (one row per run) and recommendation.json.",
        ),
    ] = None,
    compatible: SweepToolsOption = None,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    connection: ConnectionOptions,
) -> None:
    """Recommend a power limit or clock from the runs of a sweep.

    The answer is "no clear difference" if the measurements do not support a recommendation.
    """
    if bool(experiment) == bool(run_id):
        raise typer.BadParameter("give --experiment NAME, or --run-id of each run of the sweep")
    if objective is not None and objective not in OBJECTIVES:
        raise typer.BadParameter(
            f"--objective: expected one of {', '.join(OBJECTIVES)}, not {objective!r}"
        )
    check_out_options(compatible, out)
    slos = _parse_slos(slo or [])
    baselines = _parse_pairs("--baseline", baseline or [])
    since_s = duration_option(since)
    from wattline_analyzer.recommend import advice as advisor
    from wattline_analyzer.recommend.objective import (
        DEFAULT_MAX_SLOWDOWN,
        WITHOUT_TIME,
        Objective,
        QuestionError,
        SweepQuestion,
    )
    from wattline_analyzer.recommend.sweep import group_sweeps

    goal = Objective(objective) if objective else None
    default = DEFAULT_MAX_SLOWDOWN if goal in WITHOUT_TIME else math.inf
    slowdown = default if max_slowdown is None else max_slowdown / 100
    question = SweepQuestion(
        goal, unit, slowdown if math.isfinite(slowdown) else None, slos, eta, baselines
    )
    with connection.open() as source:
        runs = _load_runs(source, experiment, run_id or [], since_s, joint or [], wait=wait)
        name = source.name
    sweeps = group_sweeps(runs, joint or [])
    if not sweeps:
        exit_with_error(
            "no run can be compared: all are idle, warm-up, or without GPU energy; see: analyzer "
            "runs"
        )
    try:
        advices = [advisor.advise(sweep, question) for sweep in sweeps]
    except QuestionError as error:
        exit_with_error(str(error))
    _print_advices(advices, name, form)
    if out is not None:
        _write_advices(out, advices, name, for_others=bool(compatible))
    if all(advice.verdict == "no_sweep" for advice in advices):
        raise typer.Exit(1)


def _parse_slos(texts: list[str]) -> dict[str, float]:
    try:
        return {name: float(most) for name, most in _parse_pairs("--slo", texts).items()}
    except ValueError as error:
        raise typer.BadParameter(
            f"--slo: {error}; give RESULT=NUMBER, such as ttft_seconds_p99=0.5"
        ) from error


def _parse_pairs(option: str, texts: list[str]) -> dict[str, str]:
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"{option} {text}: give NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _load_runs(
    source: SampleSource,
    experiment: str | None,
    run_ids: list[str],
    since_s: float,
    joint: list[str],
    *,
    wait: bool,
) -> list[SweepRun]:
    """Load the runs of a sweep; one that cannot be compared is named on stderr, with the reason."""
    from wattline_analyzer.core.runs.find import find_sweep_runs, load_found_run
    from wattline_analyzer.core.runs.load import Clock, load_run
    from wattline_analyzer.recommend import sweep
    from wattline_analyzer.report import assess
    from wattline_analyzer.report.studies import with_throttling_samples

    clock = Clock(time.time, time.sleep, wait)
    scraped_s = (
        find_sweep_runs(source, experiment, since_s, clock, print_message) if experiment else {}
    )
    found = []
    for number, run_id in enumerate(scraped_s or run_ids, 1):
        count = len(scraped_s or run_ids)
        if number % 20 == 0 or number == count > 20:
            print_message(f"{number} of {count} runs read")
        recorded = (
            load_found_run(source, run_id, scraped_s[run_id], clock, print_message)
            if run_id in scraped_s
            else load_run(source, run_id, since_s, clock, print_message)
        )
        try:
            run = sweep.sweep_run(
                with_throttling_samples(source, recorded), assess.assess(recorded), joint
            )
        except (assess.NoEnergyError, ValueError) as error:
            print_message(f"left out: run {recorded.run_id}: {error}")
            continue
        if run is not None:
            found.append(run)
    return found


def _print_advices(advices: list[Advice], source: str, form: OutputFormat) -> None:
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.recommend.output import recommendation_output

    print_output(recommendation_output(advices, source), form)


def _write_advices(folder: Path, advices: list[Advice], source: str, *, for_others: bool) -> None:
    from wattline_analyzer.core.documents import as_json
    from wattline_analyzer.recommend.gpu_tune import sweep_files
    from wattline_analyzer.recommend.output import recommendation_document, sweep_csv
    from wattline_analyzer.recommend.plot import sweep_plot
    from wattline_analyzer.report.compatible.gpu_tune import REMARKS_FILE

    contents = {
        "report.png": sweep_plot(advices),
        "sweep.csv": f"{sweep_csv(advices)}\n".encode(),
        "recommendation.json": f"{as_json(recommendation_document(advices, source))}\n".encode(),
    }
    if for_others:
        summaries = sweep_files([advice.sweep for advice in advices])
        if remarks := summaries.get(REMARKS_FILE):
            print_message(
                f"the files of {SweepTool.GPU_TUNE} have no field for this: "
                f"{remarks.decode().strip()}"
            )
        contents |= {f"{SweepTool.GPU_TUNE}/{name}": content for name, content in summaries.items()}
    write_files(folder, contents)
