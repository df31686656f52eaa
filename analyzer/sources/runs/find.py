"""Search for runs by their labels, and loading of the runs that were found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from analyzer.model.catalog import ScrapedRun, Selector, scraped_runs
from analyzer.model.sample_table import RunFrames, last, rows_of
from analyzer.sources import fetch as thinned
from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.fetch import SeriesRequest
from analyzer.sources.runs.load import (
    AHEAD_S,
    MARGIN_S,
    Clock,
    Progress,
    Wait,
    duration_text,
    load_run,
    scrape_timing,
    wait_for_run_s,
    wait_for_scrape,
    wait_text,
)
from exporter.contract import metrics as m

_EARLIER_S = 600.0
_LATER_S = 900.0
"""Time after which an exporter no longer shows an ended run."""


def find_runs(
    source: SampleSource, wanted: Selector, since_s: float, clock: Clock, log: Callable[[str], None]
) -> list[ScrapedRun]:
    """Return the matching runs, in the order of their first scrapes. Raises FetchError if there are none.

    If there are none yet, wait for the next scrape, in case a run began after the last one.
    """
    now_s = clock.now()
    found = _matching(source, wanted, now_s - since_s, now_s + AHEAD_S)
    if not found and clock.waits:
        found = _wait_for_runs(source, wanted, now_s, clock, log)
    if not found:
        what = "no run" if "run_id" in wanted.equal else "no run with"
        raise FetchError(
            f"{what} {wanted.text} at {source.name} in the last {duration_text(since_s)}",
            "list runs and labels with: analyzer runs; search further back with --since",
        )
    return found


def _matching(source: SampleSource, wanted: Selector, start_s: float, end_s: float) -> list[ScrapedRun]:
    request = SeriesRequest([m.RUN_INFO], wanted.matchers, (start_s, end_s))
    rows = rows_of(thinned.fetch_states(source, request), m.RUN_INFO)  # the first and the last scrape are kept
    newest = last(rows, m.RUN_INFO)
    firsts_s = {key: float(scrapes.t.min()) for key, scrapes in rows.groups("run_id", "instance")}
    earliest = [replace(row, t=firsts_s[row.labels["run_id"], row.instance]) for row in newest]
    return [one for one in scraped_runs([*earliest, *newest]) if wanted.includes(one.labels)]


def _wait_for_runs(
    source: SampleSource, wanted: Selector, now_s: float, clock: Clock, log: Callable[[str], None]
) -> list[ScrapedRun]:
    first = scrape_timing(source, now_s, set())
    wait_s = wait_for_run_s(first, now_s, wanted.equal.get("run_id", "")) if first else 0.0
    if first is None or not wait_s:
        return []
    log(f"{wanted.text}: no such run at {source.name} yet; {wait_text(wait_s, was_scraped=False)}")
    found: list[ScrapedRun] = []

    def look() -> Progress:
        found[:] = _matching(source, wanted, now_s - MARGIN_S, clock.now() + AHEAD_S)
        return "complete" if found else "none"

    wait_for_scrape(source, clock, Wait(now_s, wait_s, first), look)
    return found


def load_runs(
    source: SampleSource, sightings: list[ScrapedRun], clock: Clock, log: Callable[[str], None]
) -> list[RunFrames]:
    return [load_found_run(source, one.run_id, (one.first_s, one.last_s), clock, log) for one in sightings]


def load_found_run(
    source: SampleSource, run_id: str, seen_s: tuple[float, float], clock: Clock, log: Callable[[str], None]
) -> RunFrames:
    """Load a run with known first and last scrapes; the time long after the last one is not queried."""
    if clock.now() - seen_s[1] > 2 * _LATER_S:
        clock = replace(clock, now=lambda: seen_s[1] + _LATER_S)
    return load_run(source, run_id, clock.now() - seen_s[0] + _EARLIER_S, clock, log)
