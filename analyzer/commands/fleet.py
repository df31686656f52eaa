"""`analyzer fleet`: joules, grams and work of all nodes, by whose they are."""

from __future__ import annotations

import re
import time
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.connection import Connection, FormatOption, reads, say, seconds
from analyzer.output.form import Format

if TYPE_CHECKING:
    from analyzer.sources.fleet.results import Wish
    from analyzer.sources.instant import InstantServer

_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_POLICIES = ("idle_shared", "idle_apart")


@reads
def fleet(
    connection: Connection,
    by: Annotated[
        str,
        typer.Option(
            metavar="KEYS", help="Labels of runs (model, user, namespace, workload, or your own), node, gpu_model."
        ),
    ] = "model,user",
    form: FormatOption = Format.TABLE,
    since: Annotated[str, typer.Option(help="How much time before --until: 90m, 12h, 7d.")] = "7d",
    until: Annotated[
        str, typer.Option(metavar="WHEN", help="The window's end: now, Unix seconds, or 2026-11-20T10:15[+01:00].")
    ] = "now",
    policy: Annotated[
        str, typer.Option(help="To whom a held device's idle power goes: idle_shared (who holds it) or idle_apart.")
    ] = _POLICIES[0],
    carbon: Annotated[
        float | None,
        typer.Option(min=0, metavar="G/KWH", help="Emissions at this intensity, in place of those the nodes counted."),
    ] = None,
    rules: Annotated[bool, typer.Option(help="Take from recording rules what they hold of the window.")] = True,
    top: Annotated[int, typer.Option(min=1, help="How many groups to show, the dearest first.")] = 50,
) -> None:
    """Who used how much of all nodes' energy, at what cost a token, and what was used by no run."""
    keys = _keys(by)
    if policy not in _POLICIES:
        raise typer.BadParameter(f"--policy is {' or '.join(_POLICIES)}, not {policy!r}")
    since_s, end_s = seconds(since), _moment(until)
    from analyzer.output.studies import fleet as fleet_text
    from analyzer.output.view import show
    from analyzer.sources.fleet.results import Wish, read
    from analyzer.studies.fleet import NO_LABEL
    from analyzer.studies.fleet import fleet as put_together

    with closing(_server(connection)) as server:
        wish = Wish(keys, policy, end_s - since_s, end_s, emissions=carbon is None, rules=rules)
        found = put_together(keys, policy, read(server, wish, say), carbon)
        unknown = [key for at, key in enumerate(keys) if {group.keys[at] for group in found.groups} == {NO_LABEL}]
        if unknown:
            say(f"no run of the window has the label {' or '.join(unknown)}; --by takes {_known(server, wish)}")
    if not found.groups:
        say("no run was on in the window; what its devices used is shown as (no run)")
    show(fleet_text.view(found, top), form)


def _known(server: InstantServer, wish: Wish) -> str:
    """What groups there can be in that window."""
    from exporter.contract.metrics import RUN_INFO

    names = server.labels(RUN_INFO.name, wish.start_s, wish.end_s)
    own = [name.removeprefix("label_") for name in names if name.startswith("label_")]
    return ", ".join([*own, "workload", "node", "gpu_model"])


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(dict.fromkeys(key.strip() for key in text.split(",")))
    for key in keys:
        if not _KEY.fullmatch(key):
            raise typer.BadParameter(f"--by is labels of runs, node or gpu_model, as in model,user; not {text!r}")
    return keys


def _moment(text: str) -> float:
    """A time of this machine's zone where it names none."""
    if text == "now":
        return time.time()
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError as error:
        raise typer.BadParameter(f"--until is now, Unix seconds or a time as 2026-11-20T10:15, not {text!r}") from error


def _server(connection: Connection) -> InstantServer:
    """A history file and an exporter's own history hold one node, and sum nothing."""
    from analyzer.sources.choose import checked_address
    from analyzer.sources.error import SourceError
    from analyzer.sources.instant import InstantServer

    if not connection.source or "://" not in connection.source:
        named = f"{connection.source!r} is none" if connection.source else "none is given"
        raise SourceError(
            f"a fleet is asked of the Prometheus or VictoriaMetrics that scrapes its nodes, and {named}",
            "give --source http://prometheus:9090, or set WATTLINE_SOURCE",
        )
    return InstantServer(checked_address(connection.source), connection.access())
