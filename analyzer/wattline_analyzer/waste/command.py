"""`analyzer waste`: energy of GPUs that are held, loaded, slowed or used without a run."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import (
    CarbonOption,
    ConnectionOptions,
    FormatOption,
    duration_option,
)
from wattline_analyzer.core.printing import OutputFormat
from wattline_analyzer.core.window_options import WindowEndOption, WindowStartOption, window_options
from wattline_analyzer.report.options import CurrencyOption, PriceOption, price_options

COMMAND = {
    "name": "waste",
    "help": "Find energy that GPUs use without work, and who holds them.",
    "group": "Cluster",
}


@with_option_groups
def waste_command(
    *,
    form: FormatOption = OutputFormat.TABLE,
    since: WindowStartOption = "24h",
    until: WindowEndOption = "now",
    node: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANCE", help="Node as in the label instance (default: all nodes)."
        ),
    ] = None,
    min_duration: Annotated[
        str, typer.Option(metavar="TIME", help="Minimum duration of a state that counts as waste.")
    ] = "10m",
    site_limit: Annotated[
        list[float] | None,
        typer.Option(
            min=1, metavar="WATTS", help="Power limit that the site sets on purpose; repeatable."
        ),
    ] = None,
    price: PriceOption = None,
    currency: CurrencyOption = "",
    carbon: CarbonOption = None,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of findings in the table.")
    ] = 50,
    connection: ConnectionOptions,
) -> None:
    """Find energy that GPUs use without work, who holds them, and the command that ends or
    describes it.
    """
    now_s = time.time()
    start_s, end_s = window_options(since, until, now_s)
    min_s = duration_option(min_duration, "--min-duration")
    cost = price_options(price, currency)
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.waste.fetch import WasteRequest, fetch_waste
    from wattline_analyzer.waste.model import Thresholds
    from wattline_analyzer.waste.output import waste_output

    limits = Thresholds(min_s=min_s, site_limits_w=tuple(site_limit or ()))
    with connection.open() as source:
        found, simulated = fetch_waste(
            source, WasteRequest(start_s, end_s, now_s, node, limits, carbon)
        )
    print_output(
        waste_output(found, (start_s, end_s), limits, cost, top).marked(simulated=simulated), form
    )
