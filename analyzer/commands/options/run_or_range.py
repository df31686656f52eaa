"""Options that name a run by its id, or a time range without a run."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.common import moment_option
from analyzer.sources.untagged.schema_names import AUTO, SCHEMA_NAMES, TOKEN_SERVER_NAMES

if TYPE_CHECKING:
    from analyzer.sources.untagged.request import RangeRequest

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ZONES = ("package", "dram")


@dataclass(frozen=True, slots=True)
class RunOrRangeOptions:
    """The run's id, or a time range and its filters, as the user typed them."""

    run_id: Annotated[str | None, typer.Option(help="ID of the run; `analyzer runs` lists them.")] = None
    start: Annotated[
        str | None,
        typer.Option(help="Start of a time range without a run, in place of --run-id: ISO 8601, Unix s, -2h."),
    ] = None
    end: Annotated[str | None, typer.Option(help="End of the range: as --start, or now (default: last scrape).")] = None
    node: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Nodes of the range, by host name or scraped address.")
    ] = None
    gpus: Annotated[str | None, typer.Option(help="GPUs of the range: 0,1 or UUIDs (default: all).")] = None
    schema: Annotated[
        str | None,
        typer.Option(metavar="|".join((AUTO, *SCHEMA_NAMES)), help="Exporter whose series to read."),
    ] = None
    matching: Annotated[
        str | None, typer.Option(metavar="'LABEL=\"VALUE\"'", help="Labels that all series of the range must have.")
    ] = None
    tokens: Annotated[
        str | None,
        typer.Option(metavar="|".join(TOKEN_SERVER_NAMES), help="Kind of LLM server whose counters give the work."),
    ] = None
    tokens_matching: Annotated[
        str | None,
        typer.Option(metavar="'LABEL=\"VALUE\"'", help="Labels that all series of the servers must have."),
    ] = None
    rapl_range_joules: Annotated[
        str | None,
        typer.Option(metavar="J|ZONE=J,…", help="Energy at which node-exporter's RAPL counters wrap."),
    ] = None

    def request(self) -> str | RangeRequest:
        """Return the run's id, or the request for a range. Raises typer.BadParameter."""
        if self.start is None:
            return self._checked_run_id()
        if self.run_id is not None:
            raise typer.BadParameter("--run-id and --start exclude each other: give one of them")
        from analyzer.sources.untagged.request import RangeRequest

        start_s, end_s = self._limits(self.start)
        return RangeRequest(
            start_s,
            end_s,
            _node_pattern(self.node),
            tuple(filter(None, (part.strip() for part in (self.gpus or "").split(",")))),
            _one_of(self.schema or AUTO, (AUTO, *SCHEMA_NAMES), "--schema"),
            _labels(self.matching, "--matching"),
            _one_of(self.tokens, TOKEN_SERVER_NAMES, "--tokens") if self.tokens else None,
            _labels(self.tokens_matching, "--tokens-matching"),
            _rapl_ranges(self.rapl_range_joules),
            until_now=(self.end or "now").strip() == "now",
        )

    def _checked_run_id(self) -> str:
        range_options = {
            "--end": self.end,
            "--node": self.node,
            "--gpus": self.gpus,
            "--schema": self.schema,
            "--matching": self.matching,
            "--tokens": self.tokens,
            "--tokens-matching": self.tokens_matching,
            "--rapl-range-joules": self.rapl_range_joules,
        }
        used = [name for name, value in range_options.items() if value is not None]
        if used:
            raise typer.BadParameter(f"{used[0]} is for a time range without a run: also give --start")
        if self.run_id is None:
            raise typer.BadParameter("give --run-id (see: analyzer runs), or --start and --end of a time range")
        return self.run_id

    def _limits(self, start: str) -> tuple[float, float]:
        now_s = time.time()
        start_s = moment_option(start, "--start", now_s)
        end_s = moment_option(self.end or "now", "--end", now_s)
        if end_s <= start_s:
            raise typer.BadParameter(
                "--end is not after --start"
                if self.end
                else "--start is not before now, which is the end of a range without --end"
            )
        if end_s > now_s + 1:
            raise typer.BadParameter("--end lies in the future; see: analyzer report --help")
        return start_s, end_s


def _node_pattern(text: str | None) -> str | None:
    try:
        re.compile(text or "")
    except re.error as error:
        raise typer.BadParameter(f"--node: expected a regular expression, not {text!r}: {error}") from error
    return text


def _one_of(text: str, names: Iterable[str], option: str) -> str:
    known = tuple(names)
    if text not in known:
        raise typer.BadParameter(f"{option}: expected one of {', '.join(known)}, not {text!r}")
    return text


def _labels(text: str | None, option: str) -> dict[str, str]:
    rest, found = (text or "").strip().removeprefix("{").removesuffix("}"), {}
    while rest:
        match = _LABEL.match(rest)
        if not match:
            raise typer.BadParameter(f'{option}: expected label="value", or several with commas, not {text!r}')
        found[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
        rest = rest[match.end() :]
    return found


def _rapl_ranges(text: str | None) -> dict[str, float]:
    """Return joules by zone; a single number is that of all zones."""
    found: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        zone, equals, number = part.rpartition("=")
        try:
            joules = float(number)
        except ValueError:
            joules = 0.0
        if joules <= 0 or (equals and zone not in _ZONES):
            raise typer.BadParameter(f"--rapl-range-joules: expected joules, or package=J,dram=J, not {text!r}")
        found |= {zone: joules} if equals else dict.fromkeys(_ZONES, joules)
    return found
