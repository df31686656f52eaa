"""Runs of a group, with the figures that are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattline_analyzer.core.printing import exit_with_error, print_message

if TYPE_CHECKING:
    from wattline_analyzer.compare.comparison import RunGroup
    from wattline_analyzer.core.run_catalog import Selector
    from wattline_analyzer.core.runs.load import Clock
    from wattline_analyzer.core.sources.base import SampleSource


def load_group(  # noqa: PLR0913, PLR0917  # the options of a group are its arguments
    source: SampleSource,
    wanted: Selector,
    since_s: float,
    carbon: float | None,
    warnings: list[str],
    clock: Clock,
) -> RunGroup:
    """Load the runs of a group that ended with outcome ok, in the order of their starts.

    Another run given by its ID is added, with a warning.
    """
    from wattline_analyzer.compare import comparison
    from wattline_analyzer.core.run_report import UserInputs
    from wattline_analyzer.core.runs.find import find_runs, load_runs
    from wattline_analyzer.report import assess

    by_id = "run_id" in wanted.equal
    members = []
    sightings = find_runs(source, wanted, since_s, clock, print_message)
    for recorded in load_runs(source, sightings, clock, print_message):
        try:
            report = assess.assess(recorded, UserInputs(grams_per_kwh=carbon))
        except assess.NoEnergyError as error:
            print_message(f"left out: {error}")
            continue
        if report.outcome != "ok" or report.ended_at_s is None:
            state = f"run {report.run_id}: {report.outcome or 'not ended'}"
            print_message(f"{'compared all the same' if by_id else 'left out'}: {state}")
            if not by_id:
                continue
            warnings.append(f"{state}; its figures are not those of a complete run")
        members.append(comparison.group_member(recorded, report))
    if not members:
        exit_with_error(
            f"no run of {wanted.text} ended with outcome ok and a known energy; see: analyzer runs"
        )
    return comparison.RunGroup(
        wanted.text, tuple(sorted(members, key=lambda one: one.started_at_s))
    )
