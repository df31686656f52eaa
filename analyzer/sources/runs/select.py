"""The runs that a selector means, each with all that the source holds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from analyzer.model.samples import RunFrames, last, of
from analyzer.model.selection import Selector, Sighting, sighted
from analyzer.sources import downsampled as thinned
from analyzer.sources.base import Source
from analyzer.sources.downsampled import Asked
from analyzer.sources.error import SourceError
from analyzer.sources.runs.runs import AHEAD_S, Clock, lately, load
from exporter.contract import metrics as m

_EARLIER_S = 600.0
_LATER_S = 900.0
"""By then the exporter shows nothing more of an ended run."""


def select(source: Source, wanted: Selector, since_s: float, now_s: float) -> list[Sighting]:
    """In the order in which they began to be seen. Raises SourceError where there is none."""
    asked = Asked([m.RUN_INFO], wanted.matchers, (now_s - since_s, now_s + AHEAD_S))
    rows = of(thinned.states(source, asked), m.RUN_INFO)  # of which the first and the last scrape are kept
    keys = ["run_id", "instance"]
    newest = last(rows, m.RUN_INFO)
    firsts = rows.groupby(keys)["t"].min()
    earliest = [replace(row, t=float(firsts[row.labels["run_id"], row.instance])) for row in newest]
    found = [one for one in sighted([*earliest, *newest]) if wanted.takes(one.labels)]
    if not found:
        what = "no run" if "run_id" in wanted.equal else "no run with"
        raise SourceError(
            f"{what} {wanted.text} at {source.name} in the last {lately(since_s)}",
            "see its runs and their labels: analyzer runs; --since looks further back",
        )
    return found


def load_all(source: Source, sightings: list[Sighting], clock: Clock, say: Callable[[str], None]) -> list[RunFrames]:
    return [load_seen(source, one.run_id, (one.first_s, one.last_s), clock, say) for one in sightings]


def load_seen(
    source: Source, run_id: str, seen_s: tuple[float, float], clock: Clock, say: Callable[[str], None]
) -> RunFrames:
    """A run of which it is known when its first and last scrapes were: one that has long ended is read as one would
    have read it soon after, so that the time since then is not asked for again for each run.
    """
    if clock.now() - seen_s[1] > 2 * _LATER_S:
        clock = Clock(lambda: seen_s[1] + _LATER_S, clock.sleep)
    return load(source, run_id, clock.now() - seen_s[0] + _EARLIER_S, clock, say)
