"""`analyzer fleet`: energy, emissions and work of all nodes, by group of runs."""

from __future__ import annotations

import time

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
from wattline_analyzer.usage.options import (
    ByOption,
    NodeCarbonOption,
    RulesOption,
    TopOption,
    key_options,
    open_fleet,
)

COMMAND = {
    "name": "fleet",
    "help": "Sum energy and energy per token of all nodes by group.",
    "group": "Cluster",
}


@with_option_groups
def fleet_command(
    *,
    by: ByOption = "model,user",
    form: FormatOption = OutputFormat.TABLE,
    since: WindowStartOption = "7d",
    until: WindowEndOption = "now",
    policy: PolicyOption = POLICIES[0],
    carbon: NodeCarbonOption = None,
    rules: RulesOption = True,
    top: TopOption = None,
    connection: ConnectionOptions,
) -> None:
    """Sum energy and energy per token of all nodes by group, and show the energy that no run
    used.
    """
    keys = key_options(by)
    policy = policy_option(policy)
    start_s, end_s = window_options(since, until, time.time())
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.usage.fleet_output import fleet_output
    from wattline_analyzer.usage.results import FleetRequest

    with open_fleet(connection) as source:
        request = FleetRequest(keys, policy, start_s, end_s, emissions=carbon is None, rules=rules)
        fleet, simulated = source.fetch(request, carbon)
    print_output(fleet_output(fleet, top or table_limit(form)).marked(simulated=simulated), form)
