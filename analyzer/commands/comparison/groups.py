"""Runs of a group, with the figures that are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analyzer.commands.printing import exit_with_error, print_message

if TYPE_CHECKING:
    from analyzer.model.catalog import Selector
    from analyzer.sources.base import SampleSource
    from analyzer.sources.runs.load import Clock
    from analyzer.studies.comparison.compare import RunGroup


def load_group(
    source: SampleSource, wanted: Selector, since_s: float, carbon: float | None, warnings: list[str], clock: Clock
) -> RunGroup:
    """Load the runs of a group that ended with outcome ok, in the order of their starts.

    Another run given by its ID is added, with a warning.
    """
    from analyzer.assess import run as assess
    from analyzer.model.report import UserInputs
    from analyzer.sources.runs.find import find_runs, load_runs
    from analyzer.studies.comparison import compare as comparison

    by_id = "run_id" in wanted.equal
    members = []
    sightings = find_runs(source, wanted, since_s, clock, print_message)
    for frames in load_runs(source, sightings, clock, print_message):
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
    return comparison.RunGroup(wanted.text, tuple(sorted(members, key=lambda one: one.started_at_s)))
