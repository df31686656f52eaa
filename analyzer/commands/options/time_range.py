"""Options by which a range of time that no run tagged is asked for, in place of a run's id."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from analyzer.commands.options.connection import Connection, say, seconds
from analyzer.commands.options.user_inputs import Told
from analyzer.sources.untagged.schema_names import AUTO, SCHEMA_NAMES, TOKEN_SERVER_NAMES

if TYPE_CHECKING:
    from analyzer.sources.untagged.request import Asked

P = ParamSpec("P")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ZONES = ("package", "dram")


def _options(
    run_id: Annotated[str | None, typer.Option(help="The run; see: analyzer runs.")] = None,
    start: Annotated[
        str | None,
        typer.Option(help="In place of --run-id: begin of a range that no run tagged: ISO 8601, Unix s, -2h."),
    ] = None,
    end: Annotated[str | None, typer.Option(help="Its end; the last scrape without it, or with: now.")] = None,
    node: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Nodes of the range, by host or by scraped address.")
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs of the range: 0,1 or UUIDs; all without it.")] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="|".join((AUTO, *SCHEMA_NAMES)), help="Whose series to read.")
    ] = None,
    matching: Annotated[
        str | None, typer.Option(metavar="'LABEL=\"VALUE\"'", help="Labels that all of these series have.")
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(metavar="|".join(TOKEN_SERVER_NAMES), help="Take the work from such servers' counters."),
    ] = None,
    tokens_matching: Annotated[
        str | None, typer.Option(metavar="'LABEL=\"VALUE\"'", help="Labels that the servers' series have.")
    ] = None,
    rapl_range_joules: Annotated[
        str | None,
        typer.Option(metavar="J|ZONE=J,…", help="After how much node-exporter's RAPL counters begin again."),
    ] = None,
) -> str | Asked:
    """The run's id, or what is asked of a range."""
    of_range = {
        "--end": end,
        "--node": node,
        "--gpus": gpus,
        "--schema": schema,
        "--matching": matching,
        "--tokens": tokens,
        "--tokens-matching": tokens_matching,
        "--rapl-range-joules": rapl_range_joules,
    }
    if start is None:
        return _of_run(run_id, of_range)
    if run_id is not None:
        raise typer.BadParameter("--run-id names a run, --start a range that no run tagged: give one of them")
    from analyzer.sources.untagged.request import Asked

    now_s = time.time()
    start_s, end_s = _moment(start, now_s, "--start"), _moment(end or "now", now_s, "--end")
    if end_s <= start_s:
        late = "--end is not after --start" if end else "--start is not before now, where a range without --end ends"
        raise typer.BadParameter(late)
    if end_s > now_s + 1:
        raise typer.BadParameter("--end lies in the future; see: analyzer report --help")
    return Asked(
        start_s,
        end_s,
        _regex(node),
        tuple(filter(None, (part.strip() for part in (gpus or "").split(",")))),
        _one_of(schema or AUTO, (AUTO, *SCHEMA_NAMES), "--schema"),
        _labels(matching, "--matching"),
        _one_of(tokens, TOKEN_SERVER_NAMES, "--tokens") if tokens else None,
        _labels(tokens_matching, "--tokens-matching"),
        _ranges(rapl_range_joules),
        until_now=(end or "now").strip() == "now",
    )


def spans(
    command: Callable[Concatenate[Connection, Told, str | Asked, P], None],
) -> Callable[Concatenate[Connection, Told, P], None]:
    """A command with `--run-id`, or a range, in place of its third parameter; goes below `tells`."""
    theirs = inspect.signature(_options, eval_str=True, locals={"Asked": object}).parameters
    connection, told, _, *mine = inspect.signature(command, eval_str=True, locals={"Asked": object}).parameters.values()

    @wraps(command)
    def with_options(connection: Connection, told: Told, **given: Any) -> None:
        asked = _options(**{name: given.pop(name) for name in theirs})
        command(connection, told, asked, **given)  # type: ignore[call-arg]  # typer gives names

    last_first = sorted([*theirs.values(), *mine], key=lambda parameter: parameter.default is not parameter.empty)
    with_options.__signature__ = inspect.Signature([connection, told, *last_first])  # type: ignore[attr-defined]  # functions take any attribute
    return with_options  # type: ignore[return-value]  # what typer calls by names


def _of_run(run_id: str | None, of_range: Mapping[str, str | None]) -> str:
    given = [name for name, value in of_range.items() if value is not None]
    if given:
        raise typer.BadParameter(f"{given[0]} is for a range that no run tagged: give its --start, too")
    if run_id is None:
        raise typer.BadParameter("give --run-id (see: analyzer runs), or --start and --end of a range no run tagged")
    return run_id


def _moment(text: str, now_s: float, option: str) -> float:
    """Without a zone it is this machine's, which is said."""
    from analyzer.importers.text import moment_s

    text = text.strip()
    if text == "now":
        return now_s
    if text.startswith("-"):
        return now_s - seconds(text[1:], option)
    zone = datetime.now().astimezone().tzinfo or timezone.utc  # noqa: UP017  # mypy knows the class
    try:
        found = moment_s(text, zone)
    except ValueError as error:
        raise typer.BadParameter(
            f"{option}: {error}; write 2026-11-20T10:15:00, with a zone as in 2026-11-20T10:15:00Z, Unix seconds, -2h "
            "or now"
        ) from error
    if not re.fullmatch(r"[\d.]+", text) and not re.search(r"(?:Z|[+-]\d\d:?\d\d)$", text):
        say(f"{option} names no zone: it is read as this machine's ({time.strftime('%z', time.localtime(found))})")
    return found


def _regex(text: str | None) -> str | None:
    try:
        re.compile(text or "")
    except re.error as error:
        raise typer.BadParameter(f"--node is a regular expression, not {text!r}: {error}") from error
    return text


def _one_of(text: str, names: Iterable[str], option: str) -> str:
    known = tuple(names)
    if text not in known:
        raise typer.BadParameter(f"{option} is one of {', '.join(known)}, not {text!r}")
    return text


def _labels(text: str | None, option: str) -> dict[str, str]:
    rest, found = (text or "").strip().removeprefix("{").removesuffix("}"), {}
    while rest:
        match = _LABEL.match(rest)
        if not match:
            raise typer.BadParameter(f'{option} is label="value", or several with commas, not {text!r}')
        found[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
        rest = rest[match.end() :]
    return found


def _ranges(text: str | None) -> dict[str, float]:
    """A single figure is that of all zones."""
    found: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        zone, equals, number = part.rpartition("=")
        try:
            joules = float(number)
        except ValueError:
            joules = 0.0
        if joules <= 0 or (equals and zone not in _ZONES):
            raise typer.BadParameter(f"--rapl-range-joules is joules, or package=J,dram=J, not {text!r}")
        found |= {zone: joules} if equals else dict.fromkeys(_ZONES, joules)
    return found
