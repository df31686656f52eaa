"""Search and loading of the runs that match a selector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from analyzer.model.samples import RunFrames, last, of
from analyzer.model.selection import Selector, Sighting, sighted
from analyzer.sources import fetch as thinned
from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.fetch import SeriesRequest
from analyzer.sources.runs.load import AHEAD_S, Clock, duration_text, load_run
from exporter.contract import metrics as m

_EARLIER_S = 600.0
_LATER_S = 900.0
"""Time after which an exporter no longer shows an ended run."""


def find_runs(source: SampleSource, wanted: Selector, since_s: float, now_s: float) -> list[Sighting]:
    """Return the matching runs, in the order of their first scrapes. Raises FetchError if there are none."""
    request = SeriesRequest([m.RUN_INFO], wanted.matchers, (now_s - since_s, now_s + AHEAD_S))
    rows = of(thinned.fetch_states(source, request), m.RUN_INFO)  # the first and the last scrape are kept
    keys = ["run_id", "instance"]
    newest = last(rows, m.RUN_INFO)
    firsts = rows.groupby(keys)["t"].min()
    earliest = [replace(row, t=float(firsts[row.labels["run_id"], row.instance])) for row in newest]
    found = [one for one in sighted([*earliest, *newest]) if wanted.takes(one.labels)]
    if not found:
        what = "no run" if "run_id" in wanted.equal else "no run with"
        raise FetchError(
            f"{what} {wanted.text} at {source.name} in the last {duration_text(since_s)}",
            "list runs and labels with: analyzer runs; search further back with --since",
        )
    return found


def load_runs(
    source: SampleSource, sightings: list[Sighting], clock: Clock, log: Callable[[str], None]
) -> list[RunFrames]:
    return [load_found_run(source, one.run_id, (one.first_s, one.last_s), clock, log) for one in sightings]


def load_found_run(
    source: SampleSource, run_id: str, seen_s: tuple[float, float], clock: Clock, log: Callable[[str], None]
) -> RunFrames:
    """Load a run with known first and last scrapes; the time long after the last one is not queried."""
    if clock.now() - seen_s[1] > 2 * _LATER_S:
        clock = Clock(lambda: seen_s[1] + _LATER_S, clock.sleep)
    return load_run(source, run_id, clock.now() - seen_s[0] + _EARLIER_S, clock, log)
