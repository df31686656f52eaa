"""Options of the commands that sum over all runs of a window, and their source."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.shared import ConnectionOptions, duration_option, moment_option
from analyzer.commands.printing import print_message

if TYPE_CHECKING:
    from analyzer.sources.base import SampleSource
    from analyzer.sources.fleet.results import FleetRequest
    from analyzer.sources.promql import InstantServer
    from analyzer.studies.fleet import Fleet

POLICIES = ("idle_shared", "idle_apart")
_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_DURATION = re.compile(r"[\d.]+[a-zA-Z]")

ByOption = Annotated[
    str,
    typer.Option(
        metavar="KEYS",
        help="Keys of the groups: labels of runs (model, user, namespace, workload, or your own), account, kind, node, "
        "gpu_model.",
    ),
]
WindowStartOption = Annotated[
    str,
    typer.Option(
        "--since", metavar="TIME", help="Length of the window before --until (90m, 12h, 7d), or its start: 2026-11-01."
    ),
]
WindowEndOption = Annotated[
    str,
    typer.Option(
        "--until", metavar="WHEN", help="End of the window: now, -2h, Unix seconds, or 2026-11-20T10:15[+01:00]."
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(POLICIES),
        help="Attribution of an allocated device's idle power: idle_shared (to its runs) or idle_apart (to none).",
    ),
]
NodeCarbonOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=5_000,
        metavar="G/KWH",
        help="Constant carbon intensity in gCO2eq/kWh (default: the nodes' own emissions).",
    ),
]
RulesOption = Annotated[
    bool, typer.Option(help="Use recording rules if they cover the window; used by default.", show_default=False)
]
TopOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Number of groups, highest energy first (default: 50 as a table, else all)."),
]


def key_options(text: str) -> tuple[str, ...]:
    """Return the keys of --by. Raises typer.BadParameter."""
    keys = tuple(dict.fromkeys(key.strip() for key in text.split(",")))
    for key in keys:
        if not _KEY.fullmatch(key):
            raise typer.BadParameter(
                f"--by: expected labels of runs, node or gpu_model, such as model,user, not {text!r}"
            )
    return keys


def policy_option(text: str) -> str:
    """Return the policy. Raises typer.BadParameter."""
    if text not in POLICIES:
        raise typer.BadParameter(f"--policy: expected {' or '.join(POLICIES)}, not {text!r}")
    return text


def window_options(since: str, until: str, now_s: float) -> tuple[float, float]:
    """Return start and end of the window in Unix seconds; `since` is a duration or a date.

    Raises typer.BadParameter.
    """
    if not since[:1].isdigit() or _DURATION.fullmatch(since):
        try:
            since_s = duration_option(since)
        except typer.BadParameter as error:
            raise typer.BadParameter(f"{error.message}; or give a time such as 2026-11-20T10:15Z") from error
        end_s = moment_option(until, "--until", now_s)
        return end_s - since_s, end_s
    start_s, end_s = moment_option(since, "--since", now_s), moment_option(until, "--until", now_s)
    if start_s >= end_s:
        raise typer.BadParameter(f"--since: {since} is not before --until {until}; give an earlier time")
    return start_s, end_s


@dataclass(frozen=True, slots=True)
class FleetSource:
    """Server, or exporter or history of a node, that is the source of a fleet."""

    opened: InstantServer | SampleSource

    def close(self) -> None:
        self.opened.close()

    def fetch(self, request: FleetRequest, grams_per_kwh: float | None) -> tuple[Fleet, bool]:
        """Return the fleet, and True if a GPU is simulated; print missing labels. Raises FetchError."""
        from analyzer.sources.fleet.local import fetch_local_fleet
        from analyzer.sources.fleet.results import fetch_fleet, has_simulated_gpus
        from analyzer.sources.fleet.usage import fetch_local_usage, fetch_usage
        from analyzer.sources.promql import InstantServer
        from analyzer.studies.fleet_groups import fleet

        if isinstance(self.opened, InstantServer):
            fetch = fetch_usage if request.details else fetch_fleet
            counts = fetch(self.opened, request, print_message)
            simulated = has_simulated_gpus(self.opened, request)
        else:
            fetch_local = fetch_local_usage if request.details else fetch_local_fleet
            counts, simulated = fetch_local(self.opened, request)
        found = fleet(request.by, request.policy, counts, grams_per_kwh)
        self._print_unknown_keys(found, request)
        return found, simulated

    def _print_unknown_keys(self, found: Fleet, request: FleetRequest) -> None:
        from analyzer.studies.fleet import NO_LABEL

        if not found.groups:
            row = "(unattributed)" if request.details else "(no run)"
            print_message(f"no run was active in the window; the energy of its devices is shown as {row}")
        unknown = [key for at, key in enumerate(request.by) if {group.keys[at] for group in found.groups} == {NO_LABEL}]
        if unknown:
            print_message(
                f"no run in the window has the label {' or '.join(unknown)}; --by accepts {self._known_keys(request)}"
            )

    def _known_keys(self, request: FleetRequest) -> str:
        from analyzer.sources.promql import InstantServer
        from exporter.contract.metrics import RUN_INFO

        if isinstance(self.opened, InstantServer):
            names = self.opened.labels(RUN_INFO.name, request.start_s, request.end_s)
        else:
            names = list(self.opened.fetch([RUN_INFO], {}, request.start_s, request.end_s).labels)
        own = [name.removeprefix("label_") for name in names if name.startswith("label_")]
        return ", ".join([*own, "workload", "kind", "node", "gpu_model"])


def open_fleet(connection: ConnectionOptions) -> closing[FleetSource]:
    """Connect to a server, or open an exporter or a history. Raises FetchError."""
    from analyzer.sources.choose import server_address
    from analyzer.sources.promql import ExporterError, InstantServer

    address = server_address(connection.source)
    if address is not None:
        server = InstantServer(address, connection.access())
        try:
            server.dialect()
        except ExporterError:
            server.close()
        except BaseException:
            server.close()
            raise
        else:
            return closing(FleetSource(server))
    return closing(FleetSource(connection.open_source()))
