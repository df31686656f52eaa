"""Which runs a source holds, and all that it holds of one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd

from analyzer.model.samples import Row, RunFrames, joined, last, of
from analyzer.model.timeline import windows
from analyzer.sources import downsampled as thinned
from analyzer.sources.base import Source
from analyzer.sources.downsample import plan
from analyzer.sources.downsampled import Asked
from analyzer.sources.error import SourceError
from analyzer.sources.runs import samples as run_samples
from analyzer.sources.runs.samples import LEDGER_S
from exporter.contract import metrics as m

MARGIN_S = 120.0
"""Raw samples are fetched this much before and after a run, for its edges and for idle power."""
SETTLE_S = 1.0
"""The ledger's figure is final within half a second of the run's end, when the sensors have updated."""
AHEAD_S = 120.0
"""The server's clock may be ahead of ours."""
PATIENCE_S = 5.0
"""A series that is no older is alive, however short its scrape interval."""
_INDEXING_S = 3.0
"""A series that is new is found later than new samples of an old one: VictoriaMetrics takes a second or more."""
_USUAL_INTERVAL_S = 15.0
_STEP_S = 1.0
"""A begin that moved by more was moved along with the clock."""
_NAMED_RUNS = 8
_LEDGER = tuple(metric for metric in m.METRICS if metric.name.startswith("wattline_run_"))
_GIVEN_ID = re.compile(r"(\d{8}-\d{6})-[0-9a-f]{6}")
"""A run id as the exporter makes them up: when the run began, in UTC, and what makes it unique."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Passed in, so that tests need not wait."""

    now: Callable[[], float]
    sleep: Callable[[float], None]


def sightings(source: Source, start_s: float, end_s: float, run_id: str | None = None) -> list[Row]:
    """Where and when runs were last scraped: by instance and run_id, `value` is the begin, `t` the last scrape.

    The begin is the value of a series, so a run is found wherever in the look-back any of its scrapes lies.
    """
    matchers = {} if run_id is None else {"run_id": run_id}
    rows = last(thinned.states(source, Asked([m.RUN_START], matchers, (start_s, end_s))), m.RUN_START)
    return sorted(rows, key=lambda row: (row.value, row.labels["run_id"], row.instance))  # servers order as they like


def ledger(source: Source, run_id: str, seen: Sequence[Row]) -> pd.DataFrame:
    """The run's own series around its last scrapes."""
    start_s, end_s = min(row.t for row in seen) - LEDGER_S, max(row.t for row in seen)
    return source.fetch(_LEDGER, {"run_id": run_id}, start_s, end_s)


def load(source: Source, run_id: str, since_s: float, clock: Clock, say: Callable[[str], None]) -> RunFrames:
    """Waits for a scrape that is still to come. Raises SourceError where the run is not there."""
    sight = _awaited(source, run_id, since_s, clock, say)
    if not sight.rows:
        raise _not_there(source, run_id, since_s, clock)
    own = _own(source, run_id, sight)
    ends_s = [row.value for row in last(own, m.RUN_END, run_id=run_id)]
    begun_s, seen_s = min(row.value for row in sight.rows), max(row.t for row in sight.rows)
    start_s, end_s = begun_s - MARGIN_S, (seen_s if len(ends_s) < len(sight.rows) else max(ends_s)) + MARGIN_S
    found = RunFrames(run_id, source.name, own, own.iloc[:0], own.iloc[:0], sight.clock_set_s)
    on = windows(found)
    rows = sorted(sight.rows, key=lambda row: row.instance)
    raw = [run_samples.raw(source, row, on.get(row.instance), (start_s, end_s)) for row in rows]
    beside = joined(run_samples.others(source, row, (start_s, end_s)) for row in rows)
    if len(beside):  # else it has no labels either
        beside = beside[beside["run_id"] != run_id]
    exact = {place: taken for _, known in raw for place, taken in known.items()}
    return replace(found, raw=joined(frame for frame, _ in raw), others=beside, exact=exact)


def _own(source: Source, run_id: str, sight: _Sight) -> pd.DataFrame:
    """The run's own series around their last scrapes, and of some all there is."""
    from_s, until_s = min(min(row.value, row.t) for row in sight.rows), max(row.t for row in sight.rows)
    edges_s = [edge_s for row in sight.rows for edge_s in (row.value, row.t)]
    ages = Asked([m.RUN_PHASE_SECONDS, m.RUN_DURATION], {"run_id": run_id}, (from_s, until_s))
    throughout, _ = thinned.signals(source, ages, plan(from_s, until_s, edges_s))
    own = joined([throughout, ledger(source, run_id, sight.rows)])
    outdated = [own["t"].isin(times) & (own["instance"] == i) for i, times in sight.outdated.items()]
    return own[~np.logical_or.reduce(outdated)] if outdated else own


@dataclass(frozen=True, slots=True)
class _Sight:
    """Where and when a run was last scraped (see `sightings`), and what became of its clock.

    Where someone set it while the run was on, the run's begin has moved: samples from before that are `outdated`.
    """

    rows: list[Row]
    clock_set_s: Mapping[str, float] = field(default_factory=dict)
    outdated: Mapping[str, list[float]] = field(default_factory=dict)


def _sight(source: Source, run_id: str, start_s: float, end_s: float) -> _Sight:
    mine = {"run_id": run_id}
    starts = thinned.states(source, Asked([m.RUN_START], mine, (start_s, end_s)))
    rows = {row.instance: row for row in last(starts, m.RUN_START)}
    moved = {
        str(i)
        for i, values in starts.groupby("instance", observed=True)["value"]
        if values.max() - values.min() > _STEP_S
    }
    if not moved:
        return _Sight(list(rows.values()))
    starts = source.fetch([m.RUN_START], mine, starts["t"].min(), starts["t"].max())
    ages = source.fetch([m.RUN_DURATION], mine, starts["t"].min(), starts["t"].max())
    both = starts.merge(ages[["t", "instance", "value"]], on=["t", "instance"], suffixes=("", "_age"))
    clock_set_s, outdated = {}, {}
    for instance in moved:
        by_age = both[both["instance"] == instance].sort_values(["value_age", "t"], kind="stable")
        first, newest = by_age.iloc[0], by_age.iloc[-1]
        rows[instance] = replace(rows[instance], t=float(newest["t"]), value=float(newest["value"]))
        clock_set_s[instance] = float(newest["value"] - first["value"])
        outdated[instance] = list(by_age["t"][(by_age["value"] - newest["value"]).abs() > _STEP_S])
    return _Sight(list(rows.values()), clock_set_s, outdated)


def _awaited(source: Source, run_id: str, since_s: float, clock: Clock, say: Callable[[str], None]) -> _Sight:
    """The sight of the run, once its end and a scrape after it are there; else that after two scrape intervals, or
    when a scrape of our own time has shown no end.

    A run that is not there at all can only have begun since the last scrape, so the next one decides.
    """
    now_s = clock.now()
    sight = _sight(source, run_id, now_s - since_s, now_s + AHEAD_S)
    if _settled(source, run_id, sight.rows):
        return sight
    where = {row.instance for row in sight.rows}
    first = pulse(source, now_s, where)
    if first is None or (where and max(row.t for row in sight.rows) < now_s - max(3 * first.interval_s, PATIENCE_S)):
        return sight  # nothing more will come
    if not where and (_began_s(run_id) < first.newest_s - PATIENCE_S or first.at_rest):
        return sight  # it would have been scraped
    wait_s = 2 * first.interval_s if where else max(first.due_s - now_s, 0) + _INDEXING_S
    what = "its end is" if where else "it is"
    say(f"run {run_id}: {what} not at {source.name} yet; waiting up to {wait_s:.0f} s for the next scrape")
    ours_s, until_s = max(now_s, first.newest_s + 0.5), now_s + wait_s + SETTLE_S
    while clock.now() < until_s:
        clock.sleep(min(1.0, first.interval_s / 2))
        latest = pulse(source, clock.now(), where)
        fresh = _sight(source, run_id, now_s - (since_s if where else MARGIN_S), clock.now() + AHEAD_S)
        sight = fresh if fresh.rows else sight
        if _settled(source, run_id, sight.rows):
            break
        if latest and latest.newest_s >= ours_s and not _ended(source, run_id, sight.rows):
            until_s = min(until_s, clock.now() + _INDEXING_S)
            ours_s = math.inf
    return sight


def _began_s(run_id: str) -> float:
    """When the run began, by its id; the end of time where that does not tell."""
    given = _GIVEN_ID.fullmatch(run_id)
    try:
        return datetime.strptime(given[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp() if given else math.inf
    except ValueError:
        return math.inf


def _ended(source: Source, run_id: str, seen: list[Row]) -> dict[str, float]:
    """The run's ends by instance, as far as they have been scraped."""
    if not seen:
        return {}
    start_s, end_s = min(row.t for row in seen) - LEDGER_S, max(row.t for row in seen)
    rows = source.fetch([m.RUN_END], {"run_id": run_id}, start_s, end_s)
    return {row.instance: row.value for row in last(rows, m.RUN_END)}


def _settled(source: Source, run_id: str, seen: list[Row]) -> bool:
    ends_s = _ended(source, run_id, seen)
    return bool(seen) and all(row.instance in ends_s and row.t >= ends_s[row.instance] + SETTLE_S for row in seen)


@dataclass(frozen=True, slots=True)
class Pulse:
    """How often instances are scraped (the slowest of them), since when each was, and when each is due again.

    `at_rest` says that it is an exporter's own history, which takes a sample each second while a run is on, and that no
    run is.
    """

    interval_s: float
    newest_s: float
    due_s: float
    at_rest: bool


def pulse(source: Source, now_s: float, instances: set[str]) -> Pulse | None:
    """Of `instances`, of all where empty; None where nothing is scraped now."""
    frame = of(source.fetch([m.BUILD_INFO], {}, now_s - 600, now_s + AHEAD_S), m.BUILD_INFO)
    intervals_s: dict[str, float] = {}
    newest_s: dict[str, float] = {}
    for instance, rows in frame.groupby("instance", observed=True):
        times = np.unique(rows["t"].to_numpy(dtype=np.float64))[-10:]
        spacing_s = float(np.median(np.diff(times))) if len(times) > 1 else _USUAL_INTERVAL_S
        if (not instances or instance in instances) and times[-1] >= now_s - max(3 * spacing_s, PATIENCE_S):
            intervals_s[str(instance)], newest_s[str(instance)] = spacing_s, float(times[-1])
    if not newest_s:
        return None
    dues_s = [t_s + intervals_s[instance] for instance, t_s in newest_s.items()]
    due_s = max((due_s for due_s in dues_s if due_s > now_s - PATIENCE_S), default=now_s)
    at_rest = set(newest_s) == {""} and newest_s[""] < now_s - PATIENCE_S
    return Pulse(max(intervals_s.values()), min(newest_s.values()), due_s, at_rest)


def _not_there(source: Source, run_id: str, since_s: float, clock: Clock) -> SourceError:
    now_s = clock.now()
    there = sightings(source, now_s - since_s, now_s + AHEAD_S)
    names = list(dict.fromkeys(row.labels["run_id"] for row in reversed(there)))
    cause = f"no run {run_id!r} at {source.name} in the last {lately(since_s)}"
    if not names:
        return SourceError(
            f"{cause}, nor any other", "is its exporter scraped by this source? see --source and --since"
        )
    more = f" and {len(names) - _NAMED_RUNS} more" if len(names) > _NAMED_RUNS else ""
    return SourceError(cause, f"there are {', '.join(names[:_NAMED_RUNS])}{more}; see: analyzer runs")


def lately(seconds: float) -> str:
    """In the largest unit of which there are two: `30 days`, `90 min`."""
    for unit, size_s in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:g} {unit}"
    return f"{seconds:g} s"
