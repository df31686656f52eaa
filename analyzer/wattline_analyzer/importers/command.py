"""`analyzer import`: import of runs from files of other tools."""

from __future__ import annotations

import math
import re
import shlex
import sys
import time
from contextlib import closing
from datetime import timedelta, timezone, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from wattline_analyzer.core.printing import exit_with_error, print_message
from wattline_analyzer.core.times import SystemZone, parse_moment
from wattline_analyzer.importers.formats import AUTO, format_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattline_analyzer.importers.assemble import Assembly, ImportedRun
    from wattline_analyzer.importers.content import FileContent

COMMAND = {
    "name": "import",
    "help": "Import power logs and results of other tools.",
    "group": "Report",
}

_FORMATS = (AUTO, *format_names())
_WATTLINE = "wattline"
"""Format whose times are Unix times in any time zone."""
_DAY_S = 86_400
_MOST_COMMANDS = 3
_LOGS_HINT = "give the GPUs' power log or the run's folder; a wall meter's log alone is not a run"


def import_command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE_OR_FOLDER", help="Files to import together.")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="History file to create, or to add runs to.")
    ],
    format_of: Annotated[
        str, typer.Option(metavar="|".join(_FORMATS), help="Format of all the files.")
    ] = AUTO,
    run_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="ID of the run, if the files hold a single run."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the node (default: name of the first file)."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Start of the run in a power log: ISO 8601 or Unix s."),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="End of the run in a power log; samples outside give the idle power.",
        ),
    ] = None,
    timezone_of: Annotated[
        str | None,
        typer.Option(
            "--timezone",
            metavar="ZONE",
            help="Time zone of times that name none: Europe/London, +01:00, UTC (default: local).",
        ),
    ] = None,
    skip_bad_lines: Annotated[
        bool, typer.Option(help="Skip and count unreadable lines.", show_default=False)
    ] = False,
) -> None:
    """Import runs from power logs of nvidia-smi and wall meters, and from results of other
    benchmarks.
    """
    if format_of not in _FORMATS:
        raise typer.BadParameter(
            f"--format-of: expected one of {', '.join(_FORMATS)}, not {format_of!r}"
        )
    zone = _parse_zone(timezone_of)
    window = (_parse_moment(start, zone, "--start"), _parse_moment(end, zone, "--end"))
    if None not in window and window[1] <= window[0]:  # type: ignore[operator]  # neither is None
        raise typer.BadParameter("--end is not after --start")
    _check_run_id(run_id)
    from wattline_analyzer.core.sources.base import ProgressBar
    from wattline_analyzer.importers.assemble import assemble_runs
    from wattline_analyzer.importers.content import ReadOptions, UnreadableError
    from wattline_analyzer.importers.recognize import read_files
    from wattline_analyzer.importers.spool import Spool
    from wattline_analyzer.importers.write_history import UnwritableError, write_history

    progress = ProgressBar(sys.stderr)
    machine = node or paths[0].resolve().stem
    try:
        with closing(Spool(out.parent)) as spool:
            contents = read_files(
                paths, format_of, ReadOptions(zone, spool, progress), print_message
            )
            _check_bad_lines(contents, skip=skip_bad_lines)
            _check_options(contents, window, run_id)
            assembly = assemble_runs(contents, machine, window, run_id)
            _print_files(contents)
            if not assembly.runs:
                exit_with_error(
                    f"no run in {', '.join(map(str, paths))}: no GPU's power was found; "
                    f"{_LOGS_HINT}"
                )
            latest_s = max(run.file_run.end_s for run in assembly.runs)
            if latest_s > time.time() + _DAY_S:
                when = time.strftime("%Y-%m-%d", time.gmtime(latest_s))
                exit_with_error(
                    f"nothing was imported: a run ends on {when}, in the future; check the times "
                    "of the files"
                )
            count = write_history(out, assembly, machine, progress)
    except (UnreadableError, UnwritableError) as error:
        exit_with_error(str(error))
    except OSError as error:
        exit_with_error(
            f"cannot write in {out.parent}: {error.strerror}; give --out a folder with free space"
        )
    _print_summary(assembly, contents, out, count, zone_given=timezone_of is not None)


def _check_options(
    contents: list[FileContent], window: tuple[float | None, float | None], run_id: str | None
) -> None:
    run_count = sum(len(content.runs) for content in contents)
    if run_count and window != (None, None):
        raise typer.BadParameter(
            "--start and --end are for power logs; these files contain the times of their runs"
        )
    if run_id and run_count > 1:
        raise typer.BadParameter(f"--run-id is for a single run; these files hold {run_count}")


def _check_bad_lines(contents: list[FileContent], *, skip: bool) -> None:
    """Print the first bad lines of each file; exit unless they are skipped."""
    for content in contents:
        for line, reason in content.bad.first:
            print_message(f"{content.path}{f':{line}' if line else ''}: {reason}")
        more = content.bad.count - len(content.bad.first)
        if more > 0:
            print_message(f"{content.path}: and {more} more bad lines")
    bad_lines = sum(content.bad.count for content in contents)
    if bad_lines and not skip:
        exit_with_error(
            f"nothing was imported: {bad_lines} bad line{'s' if bad_lines > 1 else ''}; see "
            "--skip-bad-lines"
        )
    if bad_lines:
        print_message(f"left out {bad_lines} bad line{'s' if bad_lines > 1 else ''}")


def _print_files(contents: list[FileContent]) -> None:
    """Print the files and the assumptions about them."""
    for content in contents:
        runs = f", {_count(len(content.runs), 'run')}" if content.runs else ""
        samples = sum(map(len, content.series.values()))
        lines = f" in {_count(content.lines, 'line')}" if content.lines else ""
        print_message(
            f"read {content.path} ({content.form}): {_count(samples, 'sample')}{lines}{runs}"
        )
        for note in content.notes:
            print_message(note)


def _print_summary(
    assembly: Assembly, contents: list[FileContent], out: Path, count: int, *, zone_given: bool
) -> None:
    """Print on stderr the files and energies that are missing in the runs; on stdout the runs and
    next commands.
    """
    used = {name for run in assembly.runs for name in run.files}
    for content in contents:
        if str(content.path) not in used:
            print_message(
                f"{content.path} is in no run: it has no power of a run's device at the time of a "
                "run"
            )
    for run in assembly.runs:
        if run.without_energy:
            gpus = ", ".join(run.without_energy)
            print_message(
                f"{run.run_id} has no energy of GPU {gpus}: the energy of the run is higher"
            )
    if not zone_given and any(content.form != _WATTLINE for content in contents):
        starts_s = sorted(run.file_run.start_s for run in assembly.runs)
        offsets = dict.fromkeys(
            time.strftime("%z", time.localtime(start_s)) for start_s in starts_s
        )
        print_message(
            f"using local time ({', '.join(offsets)}) for times without a time zone; see --timezone"
        )
    made = "" if any(content.runs for content in contents) else " made from the log"
    print_message(
        f"wrote {_count(len(assembly.runs), 'run')}{made}, {_count(count, 'sample')} with its "
        f"metadata, to {out}"
    )
    for run in assembly.runs:
        print(f"{run.run_id}: {_energy_text(run)}")
    first = min(run.file_run.start_s for run in assembly.runs)
    days = max(math.ceil((time.time() - first) / _DAY_S) + 1, 30)
    where = f"--source {shlex.quote(str(out))} --since {days}d"
    for run in assembly.runs[:_MOST_COMMANDS]:
        print(f"  analyzer report {where} --run-id {run.run_id}")
    if len(assembly.runs) > _MOST_COMMANDS:
        print(f"  analyzer runs {where} --limit {len(assembly.runs)}")
    if sweep := _sweep(assembly.runs):
        print(f"  analyzer recommend {where} {' '.join(f'--run-id {run_id}' for run_id in sweep)}")


def _sweep(runs: Sequence[ImportedRun]) -> list[str]:
    """Return the IDs of the runs that have a power limit, if they have several limits."""
    limits = {run.run_id: run.file_run.labels.get("power_limit_watts") for run in runs}
    return (
        [run_id for run_id, limit in limits.items() if limit]
        if len({*limits.values()} - {None}) > 1
        else []
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _energy_text(run: ImportedRun) -> str:
    from wattline.figures import short_joules_text
    from wattline_analyzer.core.devices import ESTIMATE

    if not run.energies:
        return "no energy: its files hold no power; also import a power log of that time"
    parts = []
    for energy in run.energies:
        gpus = {gpu.uuid: gpu.index for gpu in run.gpus}
        name = f"{energy.component.upper()} {gpus.get(energy.device, energy.device)}"
        known = {"counter": "its counter", ESTIMATE: "estimated from utilization"}
        how = known.get(energy.method) or f"power every {energy.spacing_s:.3g} s"
        parts.append(f"{name} {short_joules_text(energy.energy_j)} ({how})")
    if run.wall is not None:
        parts.append(f"wall {short_joules_text(run.wall.energy_j)} ({run.wall.device})")
    return ", ".join(parts)


def _parse_zone(name: str | None) -> tzinfo:
    if name is None:
        return SystemZone()
    offset = re.fullmatch(r"([+-])(\d\d):?(\d\d)", name)
    if offset:
        span = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-span if offset[1] == "-" else span)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise typer.BadParameter(
            f"--timezone: expected a zone such as Europe/London, +01:00 or UTC, not {name!r}"
        ) from error


def _parse_moment(text: str | None, zone: tzinfo, option: str) -> float | None:
    try:
        return None if text is None else parse_moment(text, zone)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def _check_run_id(run_id: str | None) -> None:
    from wattline.contract.api import RUN_ID_PATTERN

    if run_id is not None and not re.match(RUN_ID_PATTERN, run_id):
        raise typer.BadParameter(
            "--run-id: expected at most 64 letters, digits, '.', '_' and '-', beginning with a "
            "letter"
        )
