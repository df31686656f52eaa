"""`analyzer usage`: energy, GPU hours, cost, emissions and energy per unit of work of all runs, by
user, model or any label.
"""

from __future__ import annotations

import gc
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import CarbonOption, ConnectionOptions, FormatOption
from wattline_analyzer.core.printing import OutputFormat, table_limit
from wattline_analyzer.core.window_options import (
    POLICIES,
    PolicyOption,
    WindowEndOption,
    WindowStartOption,
    policy_option,
    window_options,
)
from wattline_analyzer.report.options import CurrencyOption, PriceOption, price_options

if TYPE_CHECKING:
    from wattline_analyzer.usage.facts import UsageRequest
    from wattline_analyzer.usage.sums import Usage

COMMAND = {
    "name": "usage",
    "help": "Sum kWh, GPU hours, cost, emissions and energy per token by user, model or any label.",
    "group": "Cluster",
}
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
TopOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Number of groups, highest energy first (default: 50 as a table, else all).",
    ),
]


@with_option_groups
def usage_command(
    *,
    by: ByOption = "model,user",
    form: FormatOption = OutputFormat.TABLE,
    since: WindowStartOption = "30d",
    until: WindowEndOption = "now",
    price: PriceOption = None,
    currency: CurrencyOption = "",
    carbon: CarbonOption = None,
    policy: PolicyOption = POLICIES[0],
    top: TopOption = None,
    connection: ConnectionOptions,
) -> None:
    """Sum kWh, GPU hours, cost, emissions and energy per unit of work by group, up to the total of
    the devices.
    """
    keys = key_options(by)
    policy = policy_option(policy)
    energy_price = price_options(price, currency)
    start_s, end_s = window_options(since, until, time.time())
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.usage.facts import UsageRequest
    from wattline_analyzer.usage.output import usage_output

    request = UsageRequest(keys, policy, start_s, end_s)
    usage = _fetch(connection, request, carbon)
    output = usage_output(usage, energy_price, top or table_limit(form))
    print_output(output.marked(simulated=usage.simulated), form)


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


def _fetch(connection: ConnectionOptions, request: UsageRequest, carbon: float | None) -> Usage:
    """Return the usage from a server, or an exporter or a history. Raises FetchError."""
    from contextlib import ExitStack, closing

    from wattline_analyzer.core.sources.open import server_address
    from wattline_analyzer.core.sources.prometheus import PrometheusSource
    from wattline_analyzer.core.sources.promql import InstantServer, PromqlUnsupportedError
    from wattline_analyzer.usage.facts import facts_of
    from wattline_analyzer.usage.samples import read_samples
    from wattline_analyzer.usage.server import read_server
    from wattline_analyzer.usage.sums import usage_of

    address = server_address(connection.source)
    readings = None
    with ExitStack() as stack:
        # the records of a fleet have no cycles: collecting took a quarter of the CPU time
        gc.disable()
        stack.callback(gc.enable)
        if address is not None:
            access = connection.access()
            server = stack.enter_context(closing(InstantServer(address, access)))
            raw = stack.enter_context(closing(PrometheusSource(address, access)))
            try:
                server.check()
            except PromqlUnsupportedError:
                pass
            else:
                readings = read_server(server, raw, request)
        if readings is None:
            source = stack.enter_context(closing(connection.open_source()))
            readings = read_samples(source, request)
        usage = usage_of(facts_of(readings), request, carbon)
    _print_unknown_keys(usage)
    return usage


def _print_unknown_keys(usage: Usage) -> None:
    from wattline_analyzer.core.printing import print_message
    from wattline_analyzer.usage.sums import NO_LABEL

    if not usage.groups:
        print_message(
            "no run was active in the window; the energy of its devices is shown as (unattributed)"
        )
    unknown = [
        key
        for at, key in enumerate(usage.request.by)
        if {row.keys[at] for row in usage.groups} == {NO_LABEL}
    ]
    if unknown:
        known = ", ".join([*usage.labels, "workload", "kind", "node", "gpu_model"])
        print_message(
            f"no run in the window has the label {' or '.join(unknown)}; --by accepts {known}"
        )
