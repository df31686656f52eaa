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
from wattline.contract.run import RunFormatError
from wattline_analyzer.core.downsample import plan_buckets
from wattline_analyzer.core.facts import Fact, newest_facts
from wattline_analyzer.core.fetch import Place, SeriesRequest, signal_series
from wattline_analyzer.core.recorded_run import (
    RUN_FACTS,
    RUN_TIMES,
    RecordedRun,
    gpu_models,
    read_run,
)
from wattline_analyzer.core.runs import samples as run_samples
from wattline_analyzer.core.runs.run_state import is_known_as_open
from wattline_analyzer.core.runs.samples import LEDGER_S, NodeRequests
from wattline_analyzer.core.runs.scrapes import AHEAD_S, PATIENCE_S, ScrapeTiming, scrape_timing
from wattline_analyzer.core.sample_table import SampleTable, join_tables, last, table_of
from wattline_analyzer.core.samples import Exact, Series
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.core.timeline import other_runs

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
) -> list[Fact]:
    """Return the last scrape of each run and instance: `value` is the run's start, `t` the time of
    the scrape.

    A run is found if any of its scrapes lies in the time range, since the start is the value of a
    series.
    """
    matchers = {} if run_id is None else {"run_id": run_id}
    starts = source.facts([m.RUN_START], matchers, start_s, end_s)
    return sorted(
        starts, key=lambda start: (start.value, start.labels["run_id"], start.instance)
    )  # the order of servers is arbitrary


def facts_request(run_id: str, scrapes: Sequence[Fact]) -> SeriesRequest:
    """Return the request for the run's facts around its last scrapes."""
    start_s = min(scrape.t for scrape in scrapes) - LEDGER_S
    end_s = max(scrape.t for scrape in scrapes)
    return SeriesRequest(RUN_FACTS, {"run_id": run_id}, start_s, end_s)


def load_run(
    source: SampleSource, run_id: str, since_s: float, clock: Clock, log: Callable[[str], None]
) -> RecordedRun:
    """Load a run; wait for the scrape of its end. Raises FetchError if the source has no such
    run.
    """
    sight = _wait_for_end(source, run_id, since_s, clock, log)
    if not sight.scrapes:
        raise run_not_found(source, run_id, since_s, clock.now())
    facts, times = _facts_and_times(source, run_id, sight)
    raw, exact, on_nodes = _node_samples(source, sight)
    try:
        run, scrapes = read_run(facts, times, gpu_models(last(raw, m.GPU_INFO)))
    except RunFormatError as error:
        raise FetchError(
            f"cannot read run {run_id} at {source.name}: {error}",
            "use an analyzer of the exporter's version",
        ) from error
    return RecordedRun(
        run=run,
        scrapes=scrapes,
        source=source.name,
        raw=scrapes.moved(raw),
        others=other_runs(on_nodes, run_id),
        exact=exact,
        clock_set_s=sight.clock_set_s,
        is_open=sight.is_open,
    )


def _facts_and_times(
    source: SampleSource, run_id: str, sight: _Sight
) -> tuple[list[Fact], SampleTable]:
    """Return the run's facts around its last scrapes, and its samples of RUN_TIMES from start to
    end.
    """
    at_end = facts_request(run_id, sight.scrapes)
    start_s = min(at_end.start_s, *(scrape.value for scrape in sight.scrapes))
    throughout = SeriesRequest(RUN_TIMES, {"run_id": run_id}, start_s, at_end.end_s)
    source.prefetch(*throughout)
    source.prefetch(*at_end)
    edges_s = [edge_s for scrape in sight.scrapes for edge_s in (scrape.value, scrape.t)]
    planned = plan_buckets(throughout.start_s, throughout.end_s, edges_s)
    series, _ = signal_series(source, throughout, planned)
    times = table_of(series)
    for instance, outdated in sight.outdated.items():
        times = times.take(~(np.isin(times.t, outdated) & times.where("instance", [instance])))
    return _current_facts(source, at_end, sight.outdated), times


def _current_facts(
    source: SampleSource, request: SeriesRequest, outdated: Mapping[str, Sequence[float]]
) -> list[Fact]:
    """Return facts; samples at `outdated` times of an instance are left out."""
    if not outdated:
        return source.facts(*request)
    parts = (
        [_without(series, outdated.get(series[0].get("instance", ""), ())) for series in part]
        for part in source.parts(*request)
    )
    return newest_facts(request.metrics, parts)


def _without(series: Series, outdated: Sequence[float]) -> Series:
    labels, t, value = series
    kept = ~np.isin(t, outdated)
    return labels, t[kept], value[kept]


def _node_samples(
    source: SampleSource, sight: _Sight
) -> tuple[SampleTable, dict[Place, Exact], list[Fact]]:
    """Return raw samples of the run's nodes, exact figures of GPU power where it was downsampled,
    and the facts of all runs on the nodes.
    """
    start_s = min(scrape.value for scrape in sight.scrapes) - MARGIN_S
    end_s = max(scrape.t for scrape in sight.scrapes) + MARGIN_S
    if len(sight.ends_s) == len(sight.scrapes):
        end_s = max(sight.ends_s.values()) + MARGIN_S
    nodes = [
        NodeRequests(scrape, (start_s, end_s))
        for scrape in sorted(sight.scrapes, key=lambda scrape: scrape.instance)
    ]
    raw: list[SampleTable] = []
    on_nodes: list[Fact] = []
    exact: dict[Place, Exact] = {}
    _prefetch(source, nodes[0])
    for node, following in zip_longest(nodes, nodes[1:]):
        _prefetch(source, following or ())  # of one node only, as memory is limited
        scrape = node.last_scrape
        run_s = scrape.value, sight.ends_s.get(scrape.instance, scrape.t)
        table, known = run_samples.fetch_raw(source, node, run_s)
        raw.append(table)
        exact |= known
        on_nodes += source.facts(*node.runs)
    return join_tables(raw), exact, on_nodes


def _prefetch(source: SampleSource, requests: Iterable[SeriesRequest]) -> None:
    for request in requests:
        source.prefetch(*request)


@dataclass(frozen=True, slots=True)
class _Sight:
    """Last scrapes of a run (see `last_scrapes`), and steps of its node's clock.

    `ends_s` are the run's ends by instance, as far as they have been scraped. A clock step during
    the run moves the run's start; the times of earlier samples are `outdated`. `is_open` says that
    the source knows the run as running.
    """

    scrapes: list[Fact]
    ends_s: Mapping[str, float] = field(default_factory=dict)
    clock_set_s: Mapping[str, float] = field(default_factory=dict)
    outdated: Mapping[str, list[float]] = field(default_factory=dict)
    is_open: bool = False


def _sight(source: SampleSource, run_id: str, start_s: float, end_s: float) -> _Sight:
    facts = source.facts([m.RUN_START, m.RUN_END], {"run_id": run_id}, start_s, end_s)
    scrapes = {fact.instance: fact for fact in facts if fact.metric is m.RUN_START}
    if any(scrape.highest - scrape.lowest > _STEP_S for scrape in scrapes.values()):
        return _sight_by_clocks(source, run_id, scrapes)
    first_s = min((scrape.t for scrape in scrapes.values()), default=math.inf) - LEDGER_S
    ends_s = {
        fact.instance: fact.value
        for fact in facts
        if fact.metric is m.RUN_END and fact.t >= first_s
    }
    return _Sight(list(scrapes.values()), ends_s)


def _sight_by_clocks(source: SampleSource, run_id: str, starts: Mapping[str, Fact]) -> _Sight:
    """Return the scrapes of a run during which clocks were set; `starts` are by instance."""
    own = {"run_id": run_id}
    first_s = min(start.first_s for start in starts.values())
    last_s = max(start.t for start in starts.values())
    every_start = source.fetch([m.RUN_START], own, first_s, last_s)
    every_age = source.fetch([m.RUN_DURATION], own, first_s, last_s)
    scrapes = dict(starts)
    clock_set_s = {}
    outdated = {}
    for instance, start in starts.items():
        if start.highest - start.lowest <= _STEP_S:
            continue
        begins, ages = (
            one.take(one.where("instance", [instance])) for one in (every_start, every_age)
        )
        age_s = dict(zip(ages.t.tolist(), ages.value.tolist(), strict=True))
        known = [
            (age_s[t], t, begin_s)
            for t, begin_s in zip(begins.t.tolist(), begins.value.tolist(), strict=True)
            if t in age_s
        ]
        *_, oldest_s = min(known)
        _, newest_t_s, newest_s = max(known)
        scrapes[instance] = replace(start, t=newest_t_s, value=newest_s)
        clock_set_s[instance] = newest_s - oldest_s
        outdated[instance] = [t_s for _, t_s, begin_s in known if abs(begin_s - newest_s) > _STEP_S]
    found = list(scrapes.values())
    times_s = [scrape.t for scrape in found]
    ends = SeriesRequest([m.RUN_END], own, min(times_s) - LEDGER_S, max(times_s))
    ends_s = {end.instance: end.value for end in _current_facts(source, ends, outdated)}
    return _Sight(found, ends_s, clock_set_s, outdated)


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
    is_scraped = any(scrape.t >= now_s - PATIENCE_S for scrape in sight.scrapes)
    if is_scraped and not sight.ends_s and is_known_as_open(source, run_id):
        return replace(sight, is_open=True)
    if not clock.waits:
        return sight
    where = {scrape.instance for scrape in sight.scrapes}
    first = scrape_timing(source, now_s, where)
    if first is None or (
        where
        and max(scrape.t for scrape in sight.scrapes)
        < now_s - max(3 * first.interval_s, PATIENCE_S)
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
        sight = fresh if fresh.scrapes else sight
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
    after_call_s = max(wait.now_s, wait.first.newest_s + 0.5)
    until_s = wait.now_s + wait.wait_s + SETTLE_S
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


def _is_settled(sight: _Sight) -> bool:
    ends_s = sight.ends_s
    return bool(sight.scrapes) and all(
        scrape.instance in ends_s and scrape.t >= ends_s[scrape.instance] + SETTLE_S
        for scrape in sight.scrapes
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
