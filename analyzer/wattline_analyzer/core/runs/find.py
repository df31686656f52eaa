"""Search for runs by their labels, and loading of the runs that were found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wattline.contract import metrics as m
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_catalog import ScrapedRun, Selector, scraped_runs
from wattline_analyzer.core.runs.load import (
    INDEXING_S,
    MARGIN_S,
    Clock,
    Progress,
    Wait,
    duration_text,
    load_run,
    run_not_found,
    wait_for_run_s,
    wait_for_scrape,
    wait_text,
)
from wattline_analyzer.core.runs.scrapes import AHEAD_S, PATIENCE_S, ScrapeTiming, scrape_timing
from wattline_analyzer.core.sources.base import FetchError, SampleSource

_EARLIER_S = 600.0
_LATER_S = 900.0
"""Time after which an exporter no longer shows an ended run."""
_SHORT = 2.0
"""Length of a run, in scrape intervals, up to which the next one of its group may end before its
first scrape.
"""
_NAMED = 8


def find_runs(
    source: SampleSource, wanted: Selector, since_s: float, clock: Clock, log: Callable[[str], None]
) -> list[ScrapedRun]:
    """Return the matching runs, in the order of their first scrapes. Raises FetchError if there are
    none.

    If there are none, or if they are as short as a scrape interval, wait for the next scrape, in
    case a run began after the last one.
    """

    def matching(start_s: float, end_s: float) -> list[ScrapedRun]:
        return [
            one
            for one in scraped_runs(source.facts([m.RUN_INFO], wanted.matchers, start_s, end_s))
            if wanted.includes(one.labels)
        ]

    search = _Search(source, wanted.text, matching, wanted.equal.get("run_id", ""))
    found = _found(search, since_s, clock, log)
    if not found and search.run_id:
        raise run_not_found(source, search.run_id, since_s, clock.now())
    if not found:
        raise FetchError(
            f"no run with {wanted.text} at {source.name} in the last {duration_text(since_s)}",
            "list runs and labels with: analyzer runs; search further back with --since",
        )
    return found


def find_sweep_runs(
    source: SampleSource, experiment: str, since_s: float, clock: Clock, log: Callable[[str], None]
) -> dict[str, tuple[float, float]]:
    """Return the runs of an experiment or plan, oldest first, each with its first and last scrape.

    Wait as `find_runs` does. Raises FetchError if there are none.
    """

    def of_experiment(start_s: float, end_s: float) -> list[ScrapedRun]:
        for label in ("label_experiment", "label_plan"):
            infos = source.facts([m.RUN_INFO], {label: experiment}, start_s, end_s)
            if infos:
                return scraped_runs(infos)
        return []

    search = _Search(source, f"experiment={experiment}", of_experiment)
    if found := _found(search, since_s, clock, log):
        ordered = sorted(found, key=lambda one: (one.last_s, one.first_s, one.run_id))
        return {one.run_id: (one.first_s, one.last_s) for one in ordered}
    now_s = clock.now()
    every = source.facts([m.RUN_INFO], {}, now_s - since_s, now_s + AHEAD_S)
    names = sorted(
        {info.labels["label_experiment"] for info in every if "label_experiment" in info.labels}
    )
    hint = (
        f"known experiments: {', '.join(names[:_NAMED])}"
        if names
        else "run a sweep with: workloads sweep"
    )
    raise FetchError(f"no run with {search.text} at {source.name}", f"{hint}; see --since")


@dataclass(frozen=True, slots=True)
class _Search:
    """Search for runs in a time range; `text` names them in messages, and `run_id` is empty for
    several runs.
    """

    source: SampleSource
    text: str
    look: Callable[[float, float], list[ScrapedRun]]
    run_id: str = ""


def _found(
    search: _Search, since_s: float, clock: Clock, log: Callable[[str], None]
) -> list[ScrapedRun]:
    """Return the runs, with those that the next scrape shows."""
    now_s = clock.now()
    found = search.look(now_s - since_s, now_s + AHEAD_S)
    if not clock.waits or (found and search.run_id):
        return found
    first = scrape_timing(search.source, now_s, set())
    wait_s = wait_for_run_s(first, now_s, search.run_id) if first else 0.0
    if first is None or not wait_s or (found and not _are_short(search.source, found, first)):
        return found
    if first.newest_s >= clock.called_s:  # an earlier search of this call waited for that scrape
        clock.sleep(max(first.newest_s + INDEXING_S - now_s, 0.0))
    else:
        what = "a run that has just ended may not be" if found else "no such run"
        until = wait_text(wait_s, was_scraped=bool(found))
        log(f"{search.text}: {what} at {search.source.name} yet; {until}")
        known = {one.run_id for one in found}

        def look() -> Progress:
            fresh = search.look(now_s - MARGIN_S, clock.now() + AHEAD_S)
            return "complete" if {one.run_id for one in fresh} - known else "none"

        called_s = min(now_s, clock.called_s)
        wait_for_scrape(
            search.source, clock, Wait(called_s, now_s - called_s + wait_s, first), look
        )
    return search.look(now_s - since_s, clock.now() + AHEAD_S)


def _are_short(source: SampleSource, found: list[ScrapedRun], first: ScrapeTiming) -> bool:
    """Return True if a run like the newest one can begin and end between two scrapes."""
    newest = max(found, key=lambda one: (one.last_s, one.first_s))
    ages = source.facts(
        [m.RUN_DURATION], {"run_id": newest.run_id}, newest.last_s - PATIENCE_S, newest.last_s
    )
    duration_s = max((age.value for age in ages), default=0.0)
    return duration_s <= _SHORT * first.interval_s


def load_runs(
    source: SampleSource, sightings: list[ScrapedRun], clock: Clock, log: Callable[[str], None]
) -> list[RecordedRun]:
    return [
        load_found_run(source, one.run_id, (one.first_s, one.last_s), clock, log)
        for one in sightings
    ]


def load_found_run(
    source: SampleSource,
    run_id: str,
    seen_s: tuple[float, float],
    clock: Clock,
    log: Callable[[str], None],
) -> RecordedRun:
    """Load a run with known first and last scrapes; the time long after the last one is not
    queried.
    """
    if clock.now() - seen_s[1] > 2 * _LATER_S:
        clock = replace(clock, now=lambda: seen_s[1] + _LATER_S)
    return load_run(source, run_id, clock.now() - seen_s[0] + _EARLIER_S, clock, log)
