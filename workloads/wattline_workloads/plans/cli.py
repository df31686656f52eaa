"""Commands `workloads plan` and `workloads sweep`."""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand

from wattline.client.api import DEFAULT_ADDRESS, EXPORTER, ExporterError
from wattline.client.messages import log_message
from wattline.command_line import PlainHelp, as_called
from wattline_workloads.jobs.base import workload_of

if TYPE_CHECKING:
    from wattline_workloads.plans.load import PlanFile
    from wattline_workloads.plans.results import ResultsFolder
    from wattline_workloads.runner.exporter import ExporterConnection

from wattline_workloads.plans.model import (
    OnFailure,
    PlanError,
    SweepError,
    parse_grid,
    parse_labels,
    parse_pause,
    sweep_document,
)

Exporter = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Address of the exporter; default: WATTLINE_EXPORTER, else the local one, else a new "
        "one.",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Results folder, new or empty; default: wattline-results/NAME-TIME."
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Show the runs, their limits, labels and durations, and change nothing."
    ),
]
NoLive = Annotated[
    bool,
    typer.Option(
        "--no-live", help="Print log lines and the jobs' output instead of the live table."
    ),
]
OnFailureOption = Annotated[
    OnFailure,
    typer.Option(
        metavar="stop-at-first|stop|continue",
        help="Stop if the first run fails, at any failure, or never.",
    ),
]

_COMMAND = "wattline_workloads.plans.command"


class PlanCommand(PlainHelp, TyperCommand): ...


class JobCommand(PlainHelp, TyperCommand):
    """Command that takes the name of a job, and the options of that job."""

    job_usage = "[JOB OPTIONS]"
    job_help = "Show this message and exit."


class SweepCommand(JobCommand):
    """Command that takes a job, or a command line after `--`, which `sweep_command` finds in the
    context's `meta`.
    """

    job_usage = "[JOB OPTIONS] | -- COMMAND"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        own = args[:at]
        command = args[at + 1 :]
        if command and not isinstance(
            self.make_parser(ctx).parse_args(list(own))[0].get("job"), str
        ):
            ctx.meta[_COMMAND] = command
            args = [*own, workload_of(command)]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    app.command("plan", cls=PlanCommand, short_help="Run the jobs of a plan file.")(plan_command)
    passes_job_options = {
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
    app.command(
        "sweep",
        cls=SweepCommand,
        short_help="Run a job at each power limit, then restore the limits.",
        context_settings=passes_job_options,
    )(sweep_command)


def plan_command(  # a command's options are its arguments
    path: Annotated[Path, typer.Argument(metavar="PLAN.yaml", help="Plan file.")],
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Results folder of an unfinished plan to continue."),
    ] = None,
    out: Out = None,
    exporter: Exporter = None,
    dry_run: DryRun = False,
    no_live: NoLive = False,
    on_failure: OnFailureOption = "stop-at-first",
) -> None:
    """Run the jobs of a plan file, and write their results to a folder."""
    from wattline_workloads.plans import load as plan_file

    if resume is not None and out is not None:
        raise typer.BadParameter("--resume excludes --out; remove --out")
    if resume is not None and dry_run:
        raise typer.BadParameter("--dry-run previews the whole plan; remove --resume")
    try:
        read = plan_file.read_plan(path)
    except plan_file.PlanFileError as error:
        for line in str(error).splitlines():
            log_message(line)
        raise typer.Exit(2) from error
    for note in read.notes:
        log_message(f"{path}: {note}")
    if dry_run:
        _print_dry_run(read, out, exporter)
        return
    run_plan(read, resume, out, PlanOptions(exporter, on_failure, not no_live))


def sweep_command(  # a command's options are its arguments
    context: typer.Context,
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="Job of `workloads list` and its options, or -- and a command."
        ),
    ],
    power_limits: Annotated[
        str | None,
        typer.Option(
            metavar="WATTS", help="Power limits: 300:700:50 (first, last, step), or 300,500."
        ),
    ] = None,
    sm_clocks: Annotated[
        str | None,
        typer.Option(metavar="MHZ", help="SM clocks in MHz, for a load below the power limits."),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=VALUE,…", help="Values of an option of the job; may be repeated."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of runs per setting.")
    ] = 1,
    order: Annotated[
        str, typer.Option(metavar="as-given|shuffled|interleaved", help="Order of the runs.")
    ] = "shuffled",
    order_seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Seed of the shuffled order.")
    ] = 0,
    gpus: Annotated[
        str | None, typer.Option(metavar="0,1|UUID,…|all", help="GPUs of the runs.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label", "-l", metavar="KEY=VALUE", help="Label of the runs; may be repeated."
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the experiment; default: JOB-sweep.")
    ] = None,
    warm_up_runs: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Number of warm-up runs, excluded from the results."),
    ] = 0,
    cool_down: Annotated[
        bool,
        typer.Option(
            "--cool-down",
            help="Wait before each run until the GPUs have cooled to the initial temperature.",
        ),
    ] = False,
    idle: Annotated[
        str,
        typer.Option(metavar="TIME", help="Duration of the idle runs before and after: 30s, 2m."),
    ] = "0",
    out: Out = None,
    exporter: Exporter = None,
    dry_run: DryRun = False,
    no_live: NoLive = False,
    on_failure: OnFailureOption = "stop-at-first",
) -> None:
    """Run a job, or a command after `--`, at each power limit, and restore the earlier limits at
    the end.

    The options of the job follow its name; `workloads sweep JOB --help` lists them.
    """
    from wattline_workloads.plans import load as plan_file

    if job in {"-h", "--help"} or {"-h", "--help"} & set(context.args):
        _help_of_sweep(context, job)
        return
    settings: dict[str, Any] = {
        "name": name,
        "repeats": repeats,
        "order": order,
        "seed": order_seed if order == "shuffled" else None,
        "gpus": gpus.split(",") if gpus else None,
        "warm_up_runs": warm_up_runs,
        "cool_down": {} if cool_down else None,
    }
    try:
        settings["labels"] = parse_labels(label or [])
        settings["idle_seconds"] = parse_pause("--idle", idle)
        grid = parse_grid(power_limits, sm_clocks, vary or [])
        content = plan_file.plan_as_yaml(
            sweep_document(job, context.args, context.meta.get(_COMMAND, ()), grid, settings)
        ).encode()
        read = plan_file.parse_plan(content, "workloads sweep")
    except SweepError as error:
        raise typer.BadParameter(str(error)) from error
    except plan_file.PlanFileError as error:
        message = "; ".join(
            re.sub(r"^workloads sweep:\d+: ", "", line) for line in str(error).splitlines()
        )
        raise typer.BadParameter(message.removeprefix("runs.0.").removeprefix("job: ")) from error
    if dry_run:
        _print_dry_run(read, out, exporter)
        return
    run_plan(read, None, out, PlanOptions(exporter, on_failure, not no_live, is_sweep=True))


def _print_dry_run(read: PlanFile, out: Path | None, exporter: str | None) -> None:
    from wattline.client.values import run_id_for
    from wattline_workloads.plans import dry_run, results, steps

    address = exporter or os.environ.get(EXPORTER)
    use = (
        f"reports its runs to the exporter at {address}"
        if address
        else "starts an exporter unless one runs here"
    )
    folder = str(out or results.DEFAULT_FOLDER / run_id_for(read.plan.name, "TIME"))
    all_steps = steps.complete_schedule(read.plan, read.steps)
    checked = list(dry_run.check_caps_of_gpus(all_steps, address or DEFAULT_ADDRESS, os.environ))
    for line in dry_run.lines(read.plan, all_steps, folder, use, checked):
        print(line)


def _help_of_sweep(context: typer.Context, job: str) -> None:
    from wattline_workloads.jobs.base import job_names, load_job

    print(context.get_help())
    if job in job_names():
        print(load_job(job).parser().format_help())


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of one execution of a plan."""

    exporter: str | None
    on_failure: OnFailure
    live: bool
    is_sweep: bool = False


def run_plan(
    read: PlanFile, resume: Path | None, out: Path | None, options: PlanOptions
) -> NoReturn:
    from wattline_workloads.caps.gpu_set import CapsError
    from wattline_workloads.mps.daemon import MpsError
    from wattline_workloads.plans.results import ResultsError, ResultsFolder
    from wattline_workloads.runner.exporter import find_exporter
    from wattline_workloads.runner.nsys import NsysError
    from wattline_workloads.runner.signals import unwind_on_signal

    source = None
    try:
        if resume is not None:
            results = ResultsFolder.resume(resume, read.content)
        else:
            results = ResultsFolder.create(
                out, read.plan.name, read.content, dt.datetime.now(dt.UTC)
            )
        with unwind_on_signal(), results:
            try:
                connection = find_exporter(options.exporter, os.environ)
                source = connection.source
                _run_all(read, results, connection, options)
            except (PlanError, CapsError, MpsError, NsysError, ExporterError) as error:
                log_message(str(error))
            finally:
                code = (
                    1 if results.remove_if_empty() else _report_end(read, results, source, options)
                )
    except ResultsError as error:
        log_message(str(error))
        code = 1
    raise typer.Exit(code)


def _run_all(
    read: PlanFile, results: ResultsFolder, connection: ExporterConnection, options: PlanOptions
) -> None:
    from wattline_workloads.plans import runner as plan_runner
    from wattline_workloads.plans import steps
    from wattline_workloads.plans.child import PlanContext
    from wattline_workloads.plans.progress import open_progress

    is_persistent = bool(options.exporter or EXPORTER in os.environ or connection.source is None)
    if not is_persistent and read.plan.cool_down is not None:
        log_message(
            "cool-down cannot be measured: the exporter stops after each run; start one first: "
            "exporter serve"
        )
    plan_context = PlanContext(
        results.folder, options.exporter, results.folder.name, read.plan.barrier_timeout_seconds
    )
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with open_progress(connection.api, live=options.live and sys.stderr.isatty()) as progress:
        context = plan_runner.RunnerContext(
            connection.api, is_persistent, progress, environ, plan_context, options.on_failure
        )
        all_steps = steps.complete_schedule(read.plan, read.steps)
        plan_runner.PlanRunner(read.plan, all_steps, results, context).run_all()


def _report_end(
    read: PlanFile, results: ResultsFolder, source: str | None, options: PlanOptions
) -> int:
    """Log outcomes, remaining steps and the next command; return the exit code."""
    from wattline_workloads.plans import steps

    count = len(steps.complete_schedule(read.plan, read.steps))
    left = count - len(results.steps_done())
    log_message(f"runs: {results.counts()}; results: {results.folder}")
    if left:
        rest = shlex.join(
            [
                "workloads",
                "plan",
                str(results.folder / "plan.yaml"),
                "--resume",
                str(results.folder),
            ]
        )
        log_message(as_called(f"{left} of {count} steps remain; continue with: {rest}"))
    elif options.is_sweep and any(entry.outcome == "ok" for entry in results.entries):
        command = [
            "analyzer",
            "recommend",
            "--experiment",
            read.plan.name,
            *(["--source", source] if source else []),
        ]
        log_message(as_called(f"for the best setting: {shlex.join(command)}"))
    return 1 if left or any(entry.is_bad for entry in results.entries) else 0
