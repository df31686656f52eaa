"""Command line of `workloads`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperCommand

from wattline.client import gpus as gpu_choice
from wattline.client import messages
from wattline.client.api import ExporterError
from wattline.client.messages import log_message
from wattline.command_line import PlainHelp, as_called, print_usage_error, version_line
from wattline.contract.api import MAX_LABEL_VALUE
from wattline_workloads.caps import cli
from wattline_workloads.jobs.base import job_command, job_names, load_job, workload_of
from wattline_workloads.plans import cli as plan_cli

app = typer.Typer(
    help="Measure the energy of commands and built-in jobs, as runs of the exporter.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli.app, name="caps")
# Newer versions of typer include click, so that click's classes are available through typer only.
_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

Labels = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="KEY=VALUE", help="Label of the run; may be repeated."),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        metavar="0,1|UUID,…|all",
        help="GPUs of the run; default: CUDA_VISIBLE_DEVICES, else the GPUs that the job uses.",
    ),
]
Name = Annotated[
    str | None,
    typer.Option(
        metavar="WORKLOAD",
        help="Name of the workload; default: name of the command, or of the script that it runs.",
    ),
]
JobWorkload = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="WORKLOAD", help="Name of the workload; default: name of the job."
    ),
]
Exporter = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Address of the exporter; default: WATTLINE_EXPORTER, else the local one, else a new "
        "one.",
    ),
]
RunId = Annotated[str | None, typer.Option(metavar="ID", help="ID of the run; default: a new ID.")]
Out = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Parent of the run's folder DIR/RUN_ID with events.jsonl and metrics.yml.",
    ),
]

Unit = Annotated[
    str | None,
    typer.Option(
        metavar="UNIT",
        help="Primary unit of work, e.g. samples; default: that of the job, else the first it "
        "reports.",
    ),
]
Nsys = Annotated[
    bool,
    typer.Option(
        "--nsys",
        help="Profile with Nsight Systems, and write report and tables to the run's folder "
        "(--out).",
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version_line("workloads"))
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
]


class JobListFormat(StrEnum):
    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class _Options:
    """Common options of `run` and `job`."""

    labels: list[str] | None
    gpus: str | None
    exporter: str | None
    run_id: str | None
    out: Path | None
    nsys: bool = False
    unit: str | None = None


@app.callback()
def _commands(_version: Version = False) -> None:
    """Options before the command."""


class RunCommand(PlainHelp, TyperCommand):
    """Command whose last argument is a command line."""


@app.command(
    "run",
    cls=RunCommand,
    short_help="Measure a command as a run.",
    context_settings={"allow_interspersed_args": False},
)
def run_program(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="Command with its options.")
    ],
    label: Labels = None,
    gpus: Gpus = None,
    name: Name = None,
    exporter: Exporter = None,
    run_id: RunId = None,
    out: Out = None,
    nsys: Nsys = False,
    unit: Unit = None,
) -> None:
    """Measure COMMAND as a run. Exits with the exit code of COMMAND."""
    _run(
        command,
        name or workload_of(command),
        _Options(label, gpus, exporter, run_id, out, nsys, unit),
    )


@app.command(
    "job",
    cls=plan_cli.JobCommand,
    short_help="Measure a built-in job as a run.",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
)
def run_builtin_job(
    context: typer.Context,
    job_name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="Job of `workloads list`, followed by its options."),
    ],
    label: Labels = None,
    gpus: Gpus = None,
    name: JobWorkload = None,
    exporter: Exporter = None,
    run_id: RunId = None,
    out: Out = None,
    nsys: Nsys = False,
) -> None:
    """Measure a built-in job as a run.

    The options of the job follow its name; `workloads job NAME --help` lists them.
    """
    if job_name in {"-h", "--help"}:
        print(context.get_help())
        return
    try:
        parser = load_job(job_name).parser()
    except KeyError as error:
        raise typer.BadParameter(
            f"unknown job {job_name!r}; the jobs are {', '.join(job_names())}"
        ) from error
    parser.runner_options = [name for option in context.command.params for name in option.opts]
    config = vars(
        parser.parse_args(context.args)
    )  # reports invalid options before the start of a run
    command = job_command(job_name, context.args)
    options = _Options([*_image_label(config), *(label or [])], gpus, exporter, run_id, out, nsys)
    _run(command, name or job_name, options, sees_only_its_gpus=gpus is not None, config=config)


@app.command("list", cls=RunCommand)
def list_jobs(
    form: Annotated[
        JobListFormat,
        typer.Option("--format", metavar="|".join(JobListFormat), help="Output format."),
    ] = JobListFormat.TABLE,
) -> None:
    """List the built-in jobs."""
    rows = [{"name": name, "description": str(load_job(name).__doc__)} for name in job_names()]
    if form is JobListFormat.JSON:
        print(json.dumps(rows, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}} {row['description']}")


plan_cli.register(app)  # after the commands for a single run, in the order of --help


def _run(
    command: list[str],
    workload: str,
    options: _Options,
    *,
    sees_only_its_gpus: bool = False,
    config: Mapping[str, Any] | None = None,
) -> NoReturn:
    from wattline_workloads.runner import nsys, run_folder, runner
    from wattline_workloads.runner.exporter import find_exporter

    try:
        choice = gpu_choice.choose_gpus(options.gpus, os.environ)
        if choice.warning:
            log_message(choice.warning)
        job_to_run = runner.JobRequest(
            tuple(command),
            workload,
            choice,
            _labels(options.labels or []),
            options.run_id,
            sees_only_its_gpus,
            options.out,
            config or {},
            options.unit,
            options.nsys,
        )
        code = runner.run_command(
            job_to_run, lambda: find_exporter(options.exporter, os.environ), os.environ
        )
    except (gpu_choice.GpusError, runner.InvalidRunError) as error:
        raise typer.BadParameter(str(error)) from error
    except (ExporterError, nsys.NsysError, run_folder.RunFolderError) as error:
        log_message(as_called(str(error)))
        code = 1
    raise typer.Exit(code)


def _image_label(config: Mapping[str, Any]) -> list[str]:
    """Return the label `image` of a job that runs an image; the user's label of this name replaces
    it.
    """
    return [
        f"image={image[:MAX_LABEL_VALUE]}" for image in config.get("image_and_arguments", ())[:1]
    ]


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise typer.BadParameter(
                f"-l {pair}: a label has the form key=value, such as -l model=gpt2"
            )
    return dict(pair.split("=", 1) for pair in pairs)


def _invoke(program: str) -> int | str | None:
    try:
        code: int | str | None = app(prog_name=program, standalone_mode=False)
    except SystemExit as ended:  # raised by --help of a job
        code = ended.code
    return code


def main(program: str = "workloads") -> None:
    messages.open_closed_streams()
    try:
        code = _invoke(program)
        sys.stdout.flush()
    except _UsageError as error:
        print_usage_error(program, error, log_message)
        code = 2
    except BrokenPipeError:  # the reader of stdout has closed the pipe
        messages.discard_stdout()
        code = 1
    except OSError as error:
        if error.errno not in messages.DISK_FULL_ERRNOS:
            raise
        messages.discard_stdout()
        log_message(
            f"cannot write to stdout: {error.strerror}; free disk space or redirect the output"
        )
        code = 1
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code)
