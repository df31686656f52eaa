"""`analyzer compare`: comparison of runs, or of groups of runs by their labels."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.shared import (
    DEFAULT_SINCE,
    CarbonOption,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    WaitOption,
    duration_option,
)
from analyzer.commands.printing import OutputFormat, exit_with_error, print_message
from exporter.contract.command_line import with_option_groups

if TYPE_CHECKING:
    from analyzer.model.catalog import Selector
    from analyzer.sources.base import SampleSource
    from analyzer.studies.compare import RunGroup


@with_option_groups
def compare_command(
    groups: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_GROUP", help="Run ID, or labels such as model=a,mps=true; the first is the baseline."
        ),
    ],
    *,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    force: Annotated[
        bool,
        typer.Option(
            help="Pool runs even if their hosts, drivers, GPUs, units or boundaries differ.", show_default=False
        ),
    ] = False,
    carbon: CarbonOption = None,
    connection: ConnectionOptions,
) -> None:
    """Compare energy, energy per unit, duration, rate and emissions, with confidence intervals."""
    since_s = duration_option(since)
    from analyzer.commands.printing import print_output
    from analyzer.model.catalog import SelectionError, parse_selector
    from analyzer.output.studies.compare import comparison_output
    from analyzer.studies import compare as comparison

    try:
        selectors = [parse_selector(text) for text in groups]
    except SelectionError as error:
        raise typer.BadParameter(str(error)) from error
    if len(selectors) < 2:
        raise typer.BadParameter("only one run or group given; give two or more")
    with connection.open() as source:
        warnings: list[str] = []
        loaded = [_load_group(source, one, since_s, carbon, warnings, wait=wait) for one in selectors]
    try:
        result = comparison.compare_groups(loaded, warnings, force=force)
    except comparison.MixedRunsError as error:
        exit_with_error(f"{error}; compare similar runs, or pool them with --force")
    except comparison.RepeatedRunError as error:
        raise typer.BadParameter(f"{error}; give groups that have no run in common") from error
    print_output(comparison_output(result), form)


def _load_group(
    source: SampleSource, wanted: Selector, since_s: float, carbon: float | None, warnings: list[str], *, wait: bool
) -> RunGroup:
    """Load the runs of a group that ended with outcome ok; another run given by its ID is added to the warnings."""
    from analyzer.assess import run as assess
    from analyzer.model.report import UserInputs
    from analyzer.sources.runs.load import Clock, find_runs, load_runs
    from analyzer.studies import compare as comparison

    by_id = "run_id" in wanted.equal
    members = []
    clock = Clock(time.time, time.sleep, wait)
    for frames in load_runs(source, find_runs(source, wanted, since_s, clock.now()), clock, print_message):
        try:
            report = assess.assess(frames, UserInputs(grams_per_kwh=carbon))
        except assess.NoEnergyError as error:
            print_message(f"left out: {error}")
            continue
        if report.outcome != "ok" or report.ended_at_s is None:
            state = f"run {report.run_id}: {report.outcome or 'not ended'}"
            print_message(f"{'compared all the same' if by_id else 'left out'}: {state}")
            if not by_id:
                continue
            warnings.append(f"{state}; its figures are not those of a complete run")
        members.append(comparison.group_member(frames, report))
    if not members:
        exit_with_error(f"no run of {wanted.text} ended with outcome ok and a known energy; see: analyzer runs")
    return comparison.RunGroup(wanted.text, tuple(members))
