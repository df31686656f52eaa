"""`analyzer import`: runs out of the files of other tools."""

from __future__ import annotations

import math
import re
import shlex
import time
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from analyzer.commands.options.connection import fail, say

if TYPE_CHECKING:
    from analyzer.importers.assemble import Assembled, AssembledRun
    from analyzer.importers.content import Content, Reading

FORMATS = (
    *("auto", "wattline", "gpu-tune", "iris-gpubench", "tenant-events", "aipowermeter", "nvidia-smi", "wall-meter"),
    *("aiperf", "ml-energy"),
)
_OURS = "wattline"
"""Its files tell Unix times, whatever the zone."""
_NAMED_LINES = 5
_LOGS_HINT = "a wall meter's log alone is no run: import the GPUs' power log or the run's folder with it"


def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE_OR_FOLDER...", help="What to import together.")],
    out: Annotated[Path, typer.Option(help="The history file to write, or to add runs to.")],
    format_of: Annotated[str, typer.Option(metavar="|".join(FORMATS), help="Format of all the files.")] = "auto",
    run_id: Annotated[str | None, typer.Option(help="The run's id, where the files hold one run.")] = None,
    node: Annotated[str | None, typer.Option(help="The machine's name; without it that of the first file.")] = None,
    start: Annotated[str | None, typer.Option(help="Begin of the run in a power log: ISO 8601 or Unix s.")] = None,
    end: Annotated[str | None, typer.Option(help="Its end; what lies outside serves as idle power.")] = None,
    timezone_of: Annotated[
        str | None, typer.Option("--timezone", help="Of times without one: Europe/London, +01:00, UTC; else ours.")
    ] = None,
    skip_bad_lines: Annotated[bool, typer.Option(help="Leave unreadable lines out, and count them.")] = False,
) -> None:
    """Runs from files: power logs of nvidia-smi and wall meters, and results of other benchmarks."""
    if format_of not in FORMATS:
        raise typer.BadParameter(f"--format-of is one of {', '.join(FORMATS)}, not {format_of!r}")
    zone = _zone(timezone_of)
    window = (_moment(start, zone, "--start"), _moment(end, zone, "--end"))
    if None not in window and window[1] <= window[0]:  # type: ignore[operator]  # neither is None
        raise typer.BadParameter("--end is not after --start")
    _check_id(run_id)
    from analyzer.importers import assemble as assembled
    from analyzer.importers import write_history as history_file
    from analyzer.importers.content import Reading

    contents = _contents(paths, format_of, Reading(zone), skip=skip_bad_lines)
    told = sum(len(content.runs) for content in contents)
    if told and window != (None, None):
        raise typer.BadParameter(
            "--start and --end are for power logs; these files say themselves when their runs were"
        )
    if run_id and told > 1:
        raise typer.BadParameter(f"--run-id is for one run; these files hold {told}")
    machine = node or paths[0].resolve().stem
    found = assembled.assembled(contents, machine, window, run_id)
    if not found.runs:
        fail(f"no run in {', '.join(map(str, paths))}; {_LOGS_HINT}")
    count = history_file.write(out, found, machine)
    _told(found, contents, out, count, zone_given=timezone_of is not None)


def _contents(paths: list[Path], form: str, reading: Reading, *, skip: bool) -> list[Content]:
    from analyzer.importers import recognize
    from analyzer.importers.content import UnreadableError

    try:
        contents = recognize.read_all(paths, form, reading, say)
    except UnreadableError as error:
        fail(str(error))
    for content in contents:
        for bad in content.bad[:_NAMED_LINES]:
            say(f"{content.path}{f':{bad.line}' if bad.line else ''}: {bad.reason}")
        more = len(content.bad) - _NAMED_LINES
        if more > 0:
            say(f"{content.path}: and {more} bad lines more")
    bad_lines = sum(len(content.bad) for content in contents)
    if bad_lines and not skip:
        fail(f"nothing was imported: {bad_lines} bad line{'s' if bad_lines > 1 else ''}; see --skip-bad-lines")
    if bad_lines:
        say(f"left out {bad_lines} bad line{'s' if bad_lines > 1 else ''}")
    return contents


def _told(found: Assembled, contents: list[Content], out: Path, count: int, *, zone_given: bool) -> None:
    """What was read goes to stderr; the runs, and how to report them, to stdout."""
    for content in contents:
        say(f"read {content.path} ({content.form}): {len(content.tracks)} samples, {len(content.runs)} runs")
        for note in content.notes:
            say(note)
    if not zone_given and any(content.form != _OURS for content in contents):
        say(f"times without a zone were read as this machine's ({time.strftime('%z')}); see --timezone")
    say(f"wrote {len(found.runs)} run{'s' if len(found.runs) > 1 else ''}, {count} samples, to {out}")
    for run in found.runs:
        print(f"{run.run_id}: {_energy(run)}")
    first = min(run.told.start_s for run in found.runs)
    days = max(math.ceil((time.time() - first) / 86_400) + 1, 30)
    for run in found.runs:
        if run.energies:
            print(f"  analyzer report --source {shlex.quote(str(out))} --since {days}d --run-id {run.run_id}")


def _energy(run: AssembledRun) -> str:
    if not run.energies:
        return "no energy: its files hold no power; import a power log of that time with it"
    parts = []
    for energy in run.energies:
        gpus = {gpu.uuid: gpu.index for gpu in run.gpus}
        name = f"{energy.component.upper()} {gpus.get(energy.device, energy.device)}"
        how = "its counter" if energy.method == "counter" else f"power every {energy.spacing_s:.3g} s"
        parts.append(f"{name} {energy.energy_j:.1f} J ({how})")
    return ", ".join(parts)


def _zone(named: str | None) -> tzinfo:
    if named is None:
        return datetime.now().astimezone().tzinfo or timezone.utc  # noqa: UP017  # mypy knows the class
    offset = re.fullmatch(r"([+-])(\d\d):?(\d\d)", named)
    if offset:
        span = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
        return timezone(-span if offset[1] == "-" else span)
    try:
        return ZoneInfo(named)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise typer.BadParameter(f"--timezone is a zone such as Europe/London, +01:00 or UTC, not {named!r}") from error


def _moment(text: str | None, zone: tzinfo, option: str) -> float | None:
    from analyzer.importers.text import moment_s

    try:
        return None if text is None else moment_s(text, zone)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def _check_id(run_id: str | None) -> None:
    from exporter.contract.run import RUN_ID_PATTERN

    if run_id is not None and not re.match(RUN_ID_PATTERN, run_id):
        raise typer.BadParameter("--run-id has letters, digits, '.', '_' and '-', 64 at most, and begins with a letter")
