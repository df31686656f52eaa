"""`analyzer compare`: comparison of runs, or of groups of runs by their labels."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.compare.group_options import load_group
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    CarbonOption,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    WaitOption,
    duration_option,
)
from wattline_analyzer.core.printing import OutputFormat, exit_with_error

COMMAND = {
    "name": "compare",
    "help": "Compare runs, or groups of runs.",
    "group": "Compare and decide",
}


@with_option_groups
def compare_command(
    groups: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_GROUP",
            help="Run ID, or labels such as model=a,mps=true; the first is the baseline. One "
            "group alone has its means.",
        ),
    ],
    *,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    force: Annotated[
        bool,
        typer.Option(
            help="Pool runs even if their hosts, drivers, GPUs, units or boundaries differ.",
            show_default=False,
        ),
    ] = False,
    carbon: CarbonOption = None,
    connection: ConnectionOptions,
) -> None:
    """Compare energy, energy per unit, duration, rate and emissions, with confidence intervals."""
    since_s = duration_option(since)
    from wattline_analyzer.compare import comparison
    from wattline_analyzer.compare.output import comparison_output
    from wattline_analyzer.core.printing import print_output
    from wattline_analyzer.core.run_catalog import SelectionError, parse_selector
    from wattline_analyzer.core.runs.load import Clock

    try:
        selectors = [parse_selector(text) for text in groups]
    except SelectionError as error:
        raise typer.BadParameter(str(error)) from error
    clock = Clock(time.time, time.sleep, wait, time.time())
    with connection.open() as source:
        warnings: list[str] = []
        loaded = [load_group(source, one, since_s, carbon, warnings, clock) for one in selectors]
    try:
        result = comparison.compare_groups(loaded, warnings, force=force)
    except comparison.MixedRunsError as error:
        exit_with_error(f"{error}; compare similar runs, or pool them with --force")
    except comparison.RepeatedRunError as error:
        raise typer.BadParameter(f"{error}; give groups that have no run in common") from error
    print_output(comparison_output(result), form)
