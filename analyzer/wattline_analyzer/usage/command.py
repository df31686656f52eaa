"""`analyzer usage`: energy, GPU hours, cost and emissions of all runs, by user, model or any
label.
"""

from __future__ import annotations

import time
from dataclasses import replace

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import ConnectionOptions, FormatOption
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
from wattline_analyzer.usage.options import (
    ByOption,
    NodeCarbonOption,
    RulesOption,
    TopOption,
    key_options,
    open_fleet,
)

COMMAND = {
    "name": "usage",
    "help": "Sum kWh, GPU hours, cost and emissions by user, model or any label.",
    "group": "Cluster",
}


@with_option_groups
def usage_command(
    *,
    by: ByOption = "model,user",
    form: FormatOption = OutputFormat.TABLE,
    since: WindowStartOption = "30d",
    until: WindowEndOption = "now",
    price: PriceOption = None,
    currency: CurrencyOption = "",
    carbon: NodeCarbonOption = None,
    policy: PolicyOption = POLICIES[0],
    rules: RulesOption = True,
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
    from wattline_analyzer.usage.output import usage_output
    from wattline_analyzer.usage.results import FleetRequest

    with open_fleet(connection) as source:
        request = FleetRequest(keys, policy, start_s, end_s, emissions=carbon is None, rules=rules)
        fleet, simulated = source.fetch(replace(request, details=True), carbon)
    output = usage_output(fleet, energy_price, top or table_limit(form))
    print_output(output.marked(simulated=simulated), form)
