"""`analyzer fleet`: energy, emissions and work of all nodes, by group of runs."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.shared import ConnectionOptions, FormatOption, duration_option, moment_option
from analyzer.commands.printing import OutputFormat, print_message
from exporter.contract.command_line import with_option_groups

if TYPE_CHECKING:
    from analyzer.sources.fleet.results import FleetRequest
    from analyzer.sources.promql import InstantServer

_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_POLICIES = ("idle_shared", "idle_apart")


@with_option_groups
def fleet_command(
    *,
    by: Annotated[
        str,
        typer.Option(
            metavar="KEYS",
            help="Keys of the groups: labels of runs (model, user, namespace, workload, or your own), node, gpu_model.",
        ),
    ] = "model,user",
    form: FormatOption = OutputFormat.TABLE,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Length of the window before --until: 90m, 12h, 7d.")
    ] = "7d",
    until: Annotated[
        str,
        typer.Option(metavar="WHEN", help="End of the window: now, -2h, Unix seconds, or 2026-11-20T10:15[+01:00]."),
    ] = "now",
    policy: Annotated[
        str,
        typer.Option(
            metavar="|".join(_POLICIES),
            help="Attribution of an allocated device's idle power: idle_shared (to its runs) or idle_apart (to none).",
        ),
    ] = _POLICIES[0],
    carbon: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=5_000,
            metavar="G/KWH",
            help="Constant carbon intensity in gCO2eq/kWh (default: the nodes' own emissions).",
        ),
    ] = None,
    rules: Annotated[
        bool,
        typer.Option(help="Use recording rules if they cover the window; used by default.", show_default=False),
    ] = True,
    top: Annotated[int, typer.Option(min=1, metavar="N", help="Number of groups to show, highest energy first.")] = 50,
    connection: ConnectionOptions,
) -> None:
    """Sum energy and energy per token of all nodes by group, and show the energy that no run used."""
    keys = _parse_keys(by)
    if policy not in _POLICIES:
        raise typer.BadParameter(f"--policy: expected {' or '.join(_POLICIES)}, not {policy!r}")
    since_s, end_s = duration_option(since), moment_option(until, "--until", time.time())
    from analyzer.commands.printing import print_output
    from analyzer.output.studies.fleet import fleet_output
    from analyzer.sources.fleet.results import FleetRequest, fetch_fleet, has_simulated_gpus
    from analyzer.studies.fleet import NO_LABEL
    from analyzer.studies.fleet import fleet as build_fleet

    with closing(_open_server(connection)) as server:
        request = FleetRequest(keys, policy, end_s - since_s, end_s, emissions=carbon is None, rules=rules)
        fleet = build_fleet(keys, policy, fetch_fleet(server, request, print_message), carbon)
        simulated = has_simulated_gpus(server, request)
        unknown = [key for at, key in enumerate(keys) if {group.keys[at] for group in fleet.groups} == {NO_LABEL}]
        if unknown:
            print_message(
                f"no run in the window has the label {' or '.join(unknown)}; "
                f"--by accepts {_known_keys(server, request)}"
            )
    if not fleet.groups:
        print_message("no run was active in the window; the energy of its devices is shown as (no run)")
    print_output(fleet_output(fleet, top).marked(simulated=simulated), form)


def _known_keys(server: InstantServer, request: FleetRequest) -> str:
    from exporter.contract.metrics import RUN_INFO

    names = server.labels(RUN_INFO.name, request.start_s, request.end_s)
    own = [name.removeprefix("label_") for name in names if name.startswith("label_")]
    return ", ".join([*own, "workload", "node", "gpu_model"])


def _parse_keys(text: str) -> tuple[str, ...]:
    keys = tuple(dict.fromkeys(key.strip() for key in text.split(",")))
    for key in keys:
        if not _KEY.fullmatch(key):
            raise typer.BadParameter(
                f"--by: expected labels of runs, node or gpu_model, such as model,user, not {text!r}"
            )
    return keys


def _open_server(connection: ConnectionOptions) -> InstantServer:
    """Connect to the server. Raises FetchError if the source is no server: one node's history sums nothing."""
    from analyzer.sources.base import FetchError
    from analyzer.sources.choose import check_address
    from analyzer.sources.promql import InstantServer

    if not connection.source or "://" not in connection.source:
        cause = f"{connection.source!r} is not one" if connection.source else "no --source is given"
        raise FetchError(
            f"a fleet needs the Prometheus or VictoriaMetrics that scrapes its nodes: {cause}",
            "give --source http://prometheus:9090, or set WATTLINE_SOURCE",
        )
    return InstantServer(check_address(connection.source), connection.access())
