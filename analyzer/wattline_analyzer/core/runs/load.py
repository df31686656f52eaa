"""Loading of a run from a source, once its end has been scraped."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Literal

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core import fetch as series_fetch
from wattline_analyzer.core.downsample import plan_buckets
from wattline_analyzer.core.fetch import SeriesRequest
from wattline_analyzer.core.runs import samples as run_samples
from wattline_analyzer.core.runs.run_state import is_known_as_open
from wattline_analyzer.core.runs.samples import LEDGER_S, NodeRequests
from wattline_analyzer.core.runs.scrapes import AHEAD_S, PATIENCE_S, ScrapeTiming, scrape_timing
from wattline_analyzer.core.sample_table import (
    Row,
    RunFrames,
    SampleTable,
    join_tables,
    last,
    rows_of,
    table_of,
)
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.core.timeline import windows

MARGIN_S = 120.0
"""Time before and after a run for which raw samples are fetched, for its edges and for idle power.
"""
SETTLE_S = 1.0
"""Time after a run's end until the ledger's figure is final: sensors update within half a second.
"""
INDEXING_S = 3.0
"""Time until a new series is found: VictoriaMetrics takes a second or more to index it."""
_STEP_S = 1.0
"""Change of a run's start from which on a clock step is assumed."""
_NAMED_RUNS = 8
_LEDGER = tuple(metric for metric in m.METRICS if metric.name.startswith("wattline_run_"))
_GENERATED_ID = re.compile(r"(\d{8}-\d{6})-[0-9a-f]{6}")
"""Run id as an exporter generates it: the start in UTC and a random suffix."""


class RunNotFoundError(FetchError):
    """Source without the run in the time that is searched."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Wall clock and sleep, which tests replace.

    `waits` is False if a missing scrape is not waited for. Runs that ended by `called_s` are waited
    for; with infinity, those that ended by the time of each search.
    """

    now: Callable[[], float]
    sleep: Callable[[float], None]
    waits: bool = True
    called_s: float = math.inf


def last_scrapes(
    source: SampleSource, start_s: float, end_s: float, run_id: str | None = None
) -> list[Row]:
    """Return the last scrape of each run and instance: `value` is the run's start, `t` the time of
    the scrape.

    A run is found if any of its scrapes lies in the time range, since the start is the value of a
    series.
    """
    matchers = {} if run_id is None else {"run_id": run_id}
    rows = last(
        series_fetch.fetch_states(source, SeriesRequest([m.RUN_START], matchers, (start_s, end_s))),
        m.RUN_START,
    )
    return sorted(
        rows, key=lambda row: (row.value, row.labels["run_id"], row.instance)
    )  # the order of servers is arbitrary


def ledger_request(run_id: str, scrapes: Sequence[Row]) -> SeriesRequest:
    """Return the request for the run's own series around its last scrapes."""
    span_s = min(row.t for row in scrapes) - LEDGER_S, max(row.t for row in scrapes)
    return SeriesRequest(_LEDGER, {"run_id": run_id}, span_s)


def load_run(
    source: SampleSource, run_id: str, since_s: float, clock: Clock, log: Callable[[str], None]
) -> RunFrames:
    """Load a run; wait for the scrape of its end. Raises FetchError if the source has no such
    run.
    """
    sight = _wait_for_end(source, run_id, since_s, clock, log)
    if not sight.rows:
        raise run_not_found(source, run_id, since_s, clock.now())
    own = _run_series(source, run_id, sight)
    ends_s = [row.value for row in last(own, m.RUN_END, run_id=run_id)]
    began_s, scraped_s = min(row.value for row in sight.rows), max(row.t for row in sight.rows)
    start_s, end_s = (
        began_s - MARGIN_S,
        (scraped_s if len(ends_s) < len(sight.rows) else max(ends_s)) + MARGIN_S,
    )
    frames = RunFrames(
        run_id,
        source.name,
        own,
        table_of(()),
        table_of(()),
        sight.clock_set_s,
        is_open=sight.is_open,
    )
    on = windows(own, run_id)
    nodes = [
        NodeRequests(row, (start_s, end_s))
        for row in sorted(sight.rows, key=lambda row: row.instance)
    ]
    raw, beside = [], []
    series_fetch.prefetch(source, nodes[0])
    for node, following in zip_longest(nodes, nodes[1:]):
        series_fetch.prefetch(source, following or ())  # of one node only, as memory is limited
        raw.append(run_samples.fetch_raw(source, node, on.get(node.last_scrape.instance)))
        beside.append(series_fetch.fetch_states(source, node.other_runs))
    others = join_tables(beside)
    others = others.take(~others.where("run_id", [run_id]))
    exact = {place: one for _, known in raw for place, one in known.items()}
    return replace(frames, raw=join_tables(table for table, _ in raw), others=others, exact=exact)


def _run_series(source: SampleSource, run_id: str, sight: _Sight) -> SampleTable:
    """Return the run's series around their last scrapes, and its ages from start to end."""
    from_s, until_s = (
        min(min(row.value, row.t) for row in sight.rows),
        max(row.t for row in sight.rows),
    )
    edges_s = [edge_s for row in sight.rows for edge_s in (row.value, row.t)]
    own_times = [m.RUN_PHASE_SECONDS, m.RUN_PHASE_START, m.RUN_DURATION]
    ages = SeriesRequest(own_times, {"run_id": run_id}, (from_s, until_s))
    at_end = ledger_request(run_id, sight.rows)
    series_fetch.prefetch(source, [ages, at_end])
    throughout, _ = series_fetch.signal_series(source, ages, plan_buckets(from_s, until_s, edges_s))
    own = table_of([*throughout, *series_fetch.all_series(source, at_end)])
    for instance, times in sight.outdated.items():
        own = own.take(~(np.isin(own.t, times) & own.where("instance", [instance])))
    return own


@dataclass(frozen=True, slots=True)
class _Sight:
    """Last scrapes of a run (see `last_scrapes`), and steps of its node's clock.

    `ends_s` are the run's ends by instance, as far as they have been scraped. A clock step during
    the run moves the run's start; the times of earlier samples are `outdated`. `is_open` says that
    the source knows the run as running.
    """

    rows: list[Row]
    ends_s: Mapping[str, float] = field(default_factory=dict)
    clock_set_s: Mapping[str, float] = field(default_factory=dict)
    outdated: Mapping[str, list[float]] = field(default_factory=dict)
    is_open: bool = False


def _sight(source: SampleSource, run_id: str, start_s: float, end_s: float) -> _Sight:
    own = {"run_id": run_id}
    edges = series_fetch.fetch_states(
        source, SeriesRequest([m.RUN_START, m.RUN_END], own, (start_s, end_s))
    )
    starts = rows_of(edges, m.RUN_START)
    rows = {row.instance: row for row in last(starts, m.RUN_START)}
    moved = {
        instance
        for (instance,), rows in starts.groups("instance")
        if rows.value.max() - rows.value.min() > _STEP_S
    }
    if not moved:
        return _Sight(list(rows.values()), _ends_s(edges, rows.values()))
    starts = source.fetch([m.RUN_START], own, starts.t.min(), starts.t.max())
    ages = source.fetch([m.RUN_DURATION], own, starts.t.min(), starts.t.max())
    clock_set_s, outdated = {}, {}
    for instance in moved:
        begins, known = (one.take(one.where("instance", [instance])) for one in (starts, ages))
        age_s = dict(zip(known.t.tolist(), known.value.tolist(), strict=True))
        scrapes = [
            (age_s[t], t, begin_s)
            for t, begin_s in zip(begins.t, begins.value, strict=True)
            if t in age_s
        ]
        (*_, first_s), (*_, newest_t_s, newest_s) = min(scrapes), max(scrapes)
        rows[instance] = replace(rows[instance], t=float(newest_t_s), value=float(newest_s))
        clock_set_s[instance] = float(newest_s - first_s)
        outdated[instance] = [
            float(t_s) for _, t_s, begin_s in scrapes if abs(begin_s - newest_s) > _STEP_S
        ]
    return _Sight(list(rows.values()), _ends_s(edges, rows.values()), clock_set_s, outdated)


def _wait_for_end(
    source: SampleSource, run_id: str, since_s: float, clock: Clock, log: Callable[[str], None]
) -> _Sight:
    """Return the run's scrapes once a scrape after its end exists.

    Wait for at most two scrape intervals, or until a scrape from after the call shows no end.
    """
    now_s = clock.now()
    sight = _sight(source, run_id, now_s - since_s, now_s + AHEAD_S)
    if _is_settled(sight):
        return sight
    is_scraped = any(row.t >= now_s - PATIENCE_S for row in sight.rows)
    if is_scraped and not sight.ends_s and is_known_as_open(source, run_id):
        return replace(sight, is_open=True)
    if not clock.waits:
        return sight
    where = {row.instance for row in sight.rows}
    first = scrape_timing(source, now_s, where)
    if first is None or (
        where and max(row.t for row in sight.rows) < now_s - max(3 * first.interval_s, PATIENCE_S)
    ):
        return sight  # the node is no longer scraped
    wait_s = 2 * first.interval_s if where else wait_for_run_s(first, now_s, run_id)
    if not wait_s:
        return sight
    what = "its end is not" if where else "no such run"
    log(f"run {run_id}: {what} at {source.name} yet; {wait_text(wait_s, was_scraped=bool(where))}")

    def look() -> Progress:
        nonlocal sight
        fresh = _sight(
            source, run_id, now_s - (since_s if where else MARGIN_S), clock.now() + AHEAD_S
        )
        sight = fresh if fresh.rows else sight
        return "complete" if _is_settled(sight) else "partial" if sight.ends_s else "none"

    wait_for_scrape(source, clock, Wait(now_s, wait_s, first, where), look)
    return sight


def wait_text(wait_s: float, *, was_scraped: bool) -> str:
    why = "" if was_scraped else ", in case it began after the last one"
    return f"waiting up to {wait_s:.0f} s for the next sample{why}; skip with --no-wait"


def wait_for_run_s(first: ScrapeTiming, now_s: float, run_id: str = "") -> float:
    """Return how long to wait for a run without scrapes; 0 if it would have been scraped.

    It can only have started after the last scrape, so the next scrape decides.
    """
    if _start_of_id(run_id) < first.newest_s - PATIENCE_S or first.at_rest:
        return 0.0
    return max(first.due_s - now_s, 0) + INDEXING_S


Progress = Literal["none", "partial", "complete"]
"""At how many of its instances a run was found with its end: none, some or all."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Time of the call, longest wait, timing of the scrapes at the call, and the instances (all if
    empty).
    """

    now_s: float
    wait_s: float
    first: ScrapeTiming
    instances: set[str] = field(default_factory=set)


def wait_for_scrape(
    source: SampleSource, clock: Clock, wait: Wait, look: Callable[[], Progress]
) -> None:
    """Wait until `look` is complete, or until a scrape from after the call, if `look` then still
    has none.
    """
    after_call_s, until_s = (
        max(wait.now_s, wait.first.newest_s + 0.5),
        wait.now_s + wait.wait_s + SETTLE_S,
    )
    while clock.now() < until_s:
        clock.sleep(min(1.0, wait.first.interval_s / 2))
        latest = scrape_timing(source, clock.now(), wait.instances)
        progress = look()
        if progress == "complete":
            break
        if latest and latest.newest_s >= after_call_s and progress == "none":
            until_s = min(until_s, clock.now() + INDEXING_S)
            after_call_s = math.inf


def _start_of_id(run_id: str) -> float:
    """Return the start in a generated run id, infinity for other ids."""
    match = _GENERATED_ID.fullmatch(run_id)
    try:
        return (
            datetime.strptime(match[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
            if match
            else math.inf
        )
    except ValueError:
        return math.inf


def _ends_s(edges: SampleTable, scrapes: Iterable[Row]) -> dict[str, float]:
    """Return the run's ends by instance that were scraped near its last scrapes."""
    times_s = [row.t for row in scrapes]
    if not times_s:
        return {}
    near = edges.take((edges.t >= min(times_s) - LEDGER_S) & (edges.t <= max(times_s)))
    return {row.instance: row.value for row in last(near, m.RUN_END)}


def _is_settled(sight: _Sight) -> bool:
    ends_s = sight.ends_s
    return bool(sight.rows) and all(
        row.instance in ends_s and row.t >= ends_s[row.instance] + SETTLE_S for row in sight.rows
    )


def run_not_found(
    source: SampleSource, run_id: str, since_s: float, now_s: float
) -> RunNotFoundError:
    """Return the error of an ID that no run in the `since_s` seconds up to now has, with the IDs
    of other runs. Raises FetchError.
    """
    there = last_scrapes(source, now_s - since_s, now_s + AHEAD_S)
    names = list(dict.fromkeys(row.labels["run_id"] for row in reversed(there)))
    cause = f"no run {run_id!r} at {source.name} in the last {duration_text(since_s)}"
    if not names:
        return RunNotFoundError(
            f"{cause}, nor any other run",
            "check that its exporter is scraped, --source and --since",
        )
    more = f" and {len(names) - _NAMED_RUNS} more" if len(names) > _NAMED_RUNS else ""
    similar = difflib.get_close_matches(run_id, names, 1)
    if similar:
        return RunNotFoundError(cause, f"did you mean {similar[0]}? analyzer runs lists all")
    return RunNotFoundError(
        cause, f"known runs: {', '.join(names[:_NAMED_RUNS])}{more}; see: analyzer runs"
    )


def duration_text(seconds: float) -> str:
    """Return a duration in the largest unit of which there are at least two: `30 days`, `90
    min`.
    """
    for unit, size_s in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:g} {unit}"
    return f"{seconds:g} s"
