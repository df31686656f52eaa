"""Options of the commands that sum over all runs of a window, and their source."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from wattline_analyzer.core.options import ConnectionOptions
from wattline_analyzer.core.printing import print_message

if TYPE_CHECKING:
    from wattline_analyzer.core.sources.base import SampleSource
    from wattline_analyzer.core.sources.promql import InstantServer
    from wattline_analyzer.usage.fleet import Fleet
    from wattline_analyzer.usage.results import FleetRequest

_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

ByOption = Annotated[
    str,
    typer.Option(
        metavar="KEYS",
        help="Keys of the groups: labels of runs (model, user, namespace, workload, or your own), "
        "account, kind, node, "
        "gpu_model.",
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
    bool,
    typer.Option(
        help="Use recording rules if they cover the window; used by default.", show_default=False
    ),
]
TopOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of groups, highest energy first (default: 50 as a table, else all).",
    ),
]


def key_options(text: str) -> tuple[str, ...]:
    """Return the keys of --by. Raises typer.BadParameter."""
    keys = tuple(dict.fromkeys(key.strip() for key in text.split(",")))
    for key in keys:
        if not _KEY.fullmatch(key):
            raise typer.BadParameter(
                "--by: expected labels of runs, node or gpu_model, such as model,user, not "
                f"{text!r}"
            )
    return keys


@dataclass(frozen=True, slots=True)
class FleetSource:
    """Server, or exporter or history of a node, that is the source of a fleet."""

    opened: InstantServer | SampleSource

    def close(self) -> None:
        self.opened.close()

    def fetch(self, request: FleetRequest, grams_per_kwh: float | None) -> tuple[Fleet, bool]:
        """Return the fleet, and True if a GPU is simulated; print missing labels. Raises
        FetchError.
        """
        from wattline_analyzer.core.sources.promql import InstantServer
        from wattline_analyzer.usage.groups import fleet
        from wattline_analyzer.usage.load import fetch_local_usage, fetch_usage
        from wattline_analyzer.usage.local import fetch_local_fleet
        from wattline_analyzer.usage.results import fetch_fleet, has_simulated_gpus

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
        from wattline_analyzer.usage.fleet import NO_LABEL

        if not found.groups:
            row = "(unattributed)" if request.details else "(no run)"
            print_message(
                f"no run was active in the window; the energy of its devices is shown as {row}"
            )
        unknown = [
            key
            for at, key in enumerate(request.by)
            if {group.keys[at] for group in found.groups} == {NO_LABEL}
        ]
        if unknown:
            print_message(
                f"no run in the window has the label {' or '.join(unknown)}; --by accepts "
                f"{self._known_keys(request)}"
            )

    def _known_keys(self, request: FleetRequest) -> str:
        from wattline.contract.metrics import RUN_INFO
        from wattline_analyzer.core.sources.promql import InstantServer

        if isinstance(self.opened, InstantServer):
            names = self.opened.labels(RUN_INFO.name, request.start_s, request.end_s)
        else:
            names = list(self.opened.fetch([RUN_INFO], {}, request.start_s, request.end_s).labels)
        own = [name.removeprefix("label_") for name in names if name.startswith("label_")]
        return ", ".join([*own, "workload", "kind", "node", "gpu_model"])


def open_fleet(connection: ConnectionOptions) -> closing[FleetSource]:
    """Connect to a server, or open an exporter or a history. Raises FetchError."""
    from wattline_analyzer.core.sources.open import server_address
    from wattline_analyzer.core.sources.promql import InstantServer, PromqlUnsupportedError

    address = server_address(connection.source)
    if address is not None:
        server = InstantServer(address, connection.access())
        try:
            server.dialect()
        except PromqlUnsupportedError:
            server.close()
        except BaseException:
            server.close()
            raise
        else:
            return closing(FleetSource(server))
    return closing(FleetSource(connection.open_source()))
