"""`analyzer fleet`: energy, emissions and work of all nodes, by group of runs."""

from __future__ import annotations

import time

from analyzer.commands.options.fleet import (
    POLICIES,
    ByOption,
    NodeCarbonOption,
    PolicyOption,
    RulesOption,
    TopOption,
    WindowEndOption,
    WindowStartOption,
    key_options,
    open_fleet,
    policy_option,
    window_options,
)
from analyzer.commands.options.shared import ConnectionOptions, FormatOption
from analyzer.commands.printing import OutputFormat, table_limit
from exporter.contract.command_line import with_option_groups


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
    """Sum energy and energy per token of all nodes by group, and show the energy that no run used."""
    keys = key_options(by)
    policy = policy_option(policy)
    start_s, end_s = window_options(since, until, time.time())
    from analyzer.commands.printing import print_output
    from analyzer.output.studies.fleet import fleet_output
    from analyzer.sources.fleet.results import FleetRequest

    with open_fleet(connection) as source:
        request = FleetRequest(keys, policy, start_s, end_s, emissions=carbon is None, rules=rules)
        fleet, simulated = source.fetch(request, carbon)
    print_output(fleet_output(fleet, top or table_limit(form)).marked(simulated=simulated), form)
