"""Readings of a usage window from a server, by few queries for single values."""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.sources.base import Text
from wattline_analyzer.core.sources.http import start_request
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.core.sources.promql import InstantServer, InstantValue
from wattline_analyzer.usage.facts import (
    COUNTERS,
    DEVICE_NAMES,
    DEVICES,
    HIDDEN_S,
    INFOS,
    NOT_RUNS,
    OWNERS,
    REACH_S,
    RUN_COUNTERS,
    RUN_SERIES,
    Readings,
    SeriesKey,
    UsageRequest,
    add_series,
    end_tolerance_s,
    key_of,
    no_samples,
    node_names,
)
from wattline_analyzer.usage.samples import RawReadings

QUERIES = 2
"""Maximum number of queries at the same time, which the smallest VictoriaMetrics accepts."""
PAGE_RUNS = 200
PAGE_S = 3_600.0
"""Number of runs of a page, and the longest time between the first and the last of their ends."""
TAIL_S = 600.0
"""Time for which exporters show the series of a run after its end."""
_AT_ONCE_S = 0.5
"""Time around the first sample of a node in which all of its series have their first sample."""
_Part = tuple[str, str]
"""Address of an exporter, and id of a run."""
_Page = tuple[Sequence[str], float, float]
"""Ids of runs, and the time and the reach (s) of the query for their series."""
_REMEDY = "check that it scrapes the exporters, and that they were running"


def read_server(server: InstantServer, raw: PrometheusSource, request: UsageRequest) -> Readings:
    """Return the readings of a server. Raises FetchError."""
    return _ServerReader(server, raw, request).read()


class _ServerReader:
    def __init__(self, server: InstantServer, raw: PrometheusSource, request: UsageRequest) -> None:
        self._server = server
        self._raw = raw
        self._start_s = request.start_s
        self._end_s = request.end_s
        self._window_s = request.end_s - request.start_s
        # an absent label matches an empty text, so that these select the counters of nodes
        self._policies = {"policy": ("", request.policy, "idle_shared")}
        self._of_nodes: dict[str, Text] = {**self._policies, "run_id": NOT_RUNS}
        self._found = Readings(server.name, request.start_s, request.end_s)
        self._free = threading.Semaphore(QUERIES)
        self._by = request.by

    def read(self) -> Readings:
        falls = [self._later(partial(self._falls, metric)) for metric in DEVICES]
        before = self._newest((*COUNTERS, *INFOS), self._of_nodes, self._start_s, REACH_S)
        reach_s = min(end_tolerance_s(self._window_s), self._window_s)
        last = self._newest((*COUNTERS, *INFOS), self._of_nodes, self._end_s, reach_s)
        edges = self._newest((m.RUN_START, m.RUN_END), {}, self._end_s, self._window_s)
        for labels, value in last.result():
            add_series(self._found.edges, labels, value)
        present = {key.instance for key in self._found.edges if key.name in DEVICE_NAMES}
        counts = {
            key_of({"__name__": metric.name, **labels}): number
            for metric, each in zip(DEVICES, falls, strict=True)
            for labels, number in each.result()
        }
        fell = {key.instance for key, number in counts.items() if number > 0}
        seen = {*counts, *(key_of(labels) for labels, _ in before.result())}
        self._add_gone({key.instance for key in seen - self._found.edges.keys()})
        earlier = self._add_before(before.result())
        self._add_nodes(earlier, present, fell)
        self._add_runs(edges.result())
        if any(key.name == m.EMISSIONS.name for key in self._found.edges):
            for labels, value in self._server.means(m.CARBON_INTENSITY, self._start_s, self._end_s):
                key = key_of({"__name__": m.CARBON_INTENSITY.name, **labels})
                self._found.intensities[key] = value
        if "namespace" in self._by:
            self._add_pods()
        if not any(key.name in DEVICE_NAMES for key in self._found.edges):
            raise no_samples(self._server.name, self._start_s, self._end_s, _REMEDY)
        return self._found

    def _later(self, request: Callable[[], list[InstantValue]]) -> Future[list[InstantValue]]:
        return start_request(self._free, request)

    def _newest(
        self,
        metrics: Sequence[Metric],
        matchers: Mapping[str, Text],
        at_s: float,
        reach_s: float,
    ) -> Future[list[InstantValue]]:
        return self._later(partial(self._server.newest, metrics, matchers, at_s, reach_s))

    def _falls(self, metric: Metric) -> list[InstantValue]:
        return self._server.falls(metric, self._start_s - REACH_S, self._end_s)

    def _add_gone(self, gone: Collection[str]) -> None:
        """Add the series without a sample at the end of the window."""
        if not gone:
            return
        matchers = {**self._of_nodes, "instance": gone}
        metrics = (*COUNTERS, *INFOS)
        for labels, value in self._server.newest(metrics, matchers, self._end_s, self._window_s):
            add_series(self._found.edges, labels, value)

    def _add_before(self, rows: Iterable[InstantValue]) -> set[str]:
        """Add the values before the window; return the addresses that have some."""
        earlier = set()
        for labels, value in rows:
            key = key_of(labels)
            if key.name in DEVICE_NAMES:
                earlier.add(key.instance)
            self._set_before(key, value)
        return earlier

    def _set_before(self, key: SeriesKey, value: float) -> None:
        edges = self._found.edges.get(key)
        if edges is not None:
            edges.before = value if edges.before is None else max(value, edges.before)

    def _add_nodes(self, earlier: set[str], present: set[str], fell: set[str]) -> None:
        """Add what is special: first samples, last samples, addresses of one node, and falls."""
        names = node_names(self._found.edges)
        known = {names[one] for one in earlier if one in names}
        several = {node for node, number in Counter(names.values()).items() if number > 1}
        cut = {one for one, node in names.items() if node not in known}
        moved = {one for one, node in names.items() if node in several}
        special = cut | moved | (names.keys() - present)
        if special:
            self._add_presence(special, earlier, present)
        for instance in sorted(cut):
            self._cut(instance)
        for metric in {key.metric for key in self._lacking_first(moved | cut)}:
            self._add_first(metric, self._lacking_first(moved | cut))
        self._add_soon()
        fallen = {one for one in names if one in fell}
        if fallen:
            self._read_raw(fallen)

    def _add_presence(self, special: set[str], earlier: set[str], present: set[str]) -> None:
        matchers = {"instance": special}
        for one in self._server.presence(
            DEVICES, matchers, self._start_s, self._end_s, ["instance"]
        ):
            instance = one.labels.get("instance", "")
            if instance not in earlier:
                first_s = self._first_s(instance, one.first_s, one.step_s)
                self._found.first_s[instance] = first_s
            if instance not in present:
                self._found.last_s[instance] = one.last_s
        for key, edges in self._found.edges.items():
            edges.first_s = self._found.first_s.get(key.instance, edges.first_s)
            edges.last_s = self._found.last_s.get(key.instance, edges.last_s)

    def _first_s(self, instance: str, from_s: float, step_s: float) -> float:
        """Return the time of the first sample of an address, which is within a step."""
        table = self._raw.fetch(DEVICES, {"instance": instance}, from_s, from_s + step_s)
        return float(table.t.min()) if len(table.t) else from_s

    def _cut(self, instance: str) -> None:
        """Take the values at the first sample of a node as those before the window."""
        begin_s = self._found.first_s.get(instance)
        if begin_s is None:
            return
        matchers = {**self._policies, "instance": instance}
        metrics = (*COUNTERS, *RUN_COUNTERS)
        for labels, value in self._server.newest(metrics, matchers, begin_s, _AT_ONCE_S):
            key = key_of(labels)
            if key not in self._found.edges and key.metric in RUN_COUNTERS:
                add_series(self._found.edges, labels, value)
            self._set_before(key, value)

    def _add_soon(self) -> None:
        """Add the first values of owners that were new at the start of their node's window."""
        by_begin: defaultdict[float, set[str]] = defaultdict(set)
        for key, edges in self._found.edges.items():
            if edges.is_hidden and key.metric in OWNERS:
                begin_s = self._found.first_s.get(key.instance, self._start_s)
                by_begin[begin_s].add(key.instance)
        for begin_s, instances in by_begin.items():
            matchers = {**self._policies, "instance": instances}
            soon_s = min(begin_s + HIDDEN_S, self._end_s)
            reach_s = max(soon_s - begin_s, _AT_ONCE_S)
            for labels, value in self._server.newest(OWNERS, matchers, soon_s, reach_s):
                known = self._found.edges.get(key_of(labels))
                if known is not None:
                    known.soon = value

    def _lacking_first(self, special: Collection[str]) -> list[SeriesKey]:
        """Return the counters without a value before the window that may be older."""
        return [
            key
            for key, edges in self._found.edges.items()
            if edges.before is None
            and edges.first is None
            and (
                (key.instance in special and key.metric in COUNTERS)
                or key.name in DEVICE_NAMES
                or (key.name == m.RUN_ATTRIBUTED_ENERGY.name and not key.own[0])
            )
        ]

    def _add_first(self, metric: Metric, keys: Sequence[SeriesKey]) -> None:
        wanted = {key for key in keys if key.metric is metric}
        matchers = {**self._of_nodes, "instance": {key.instance for key in wanted}}
        for labels, value in self._server.lowest(metric, matchers, self._start_s, self._end_s):
            key = key_of({"__name__": metric.name, **labels})
            if key in wanted:
                self._found.edges[key].first = value

    def _read_raw(self, instances: Collection[str]) -> None:
        """Count from raw samples what fell."""
        matchers = {**self._of_nodes, "instance": instances}
        counted = RawReadings(self._server.name, self._start_s, self._end_s)
        for part in self._raw.parts(COUNTERS, matchers, self._start_s - REACH_S, self._end_s):
            counted.add(part)
        for key, edges in counted.result().edges.items():
            edges.last_s = self._found.last_s.get(key.instance, edges.last_s)
            self._found.edges[key] = edges

    def _add_runs(self, rows: Iterable[InstantValue]) -> None:
        """Add the series of runs: of ended ones soon after their end, of others at the end of the
        window; and the values of those that started earlier at its start.
        """
        starts: dict[_Part, float] = {}
        ends: defaultdict[str, list[float]] = defaultdict(list)
        for labels, value in rows:
            part = labels.get("instance", ""), labels["run_id"]
            if labels["__name__"] == m.RUN_START.name:
                starts[part] = value
            else:
                ends[part[1]].append(value)
        pages = [self._ended(page, ends) for page in _pages_by_end(ends)]
        others = sorted({run_id for _, run_id in starts} - ends.keys())
        pages += [(page, self._end_s, self._window_s) for page in _chunks(others)]
        self._add_pages(pages, set(starts))
        early = {run_id for (_, run_id), start_s in starts.items() if start_s < self._start_s}
        for page in _chunks(sorted(early)):
            matchers = {**self._policies, "run_id": page}
            for labels, value in self._server.newest(
                RUN_COUNTERS, matchers, self._start_s, REACH_S
            ):
                self._set_before(key_of(labels), value)

    def _ended(self, page: Sequence[str], ends: Mapping[str, Sequence[float]]) -> _Page:
        """Return the page of runs at a time at which each of them has ended."""
        from_s = min(min(ends[run_id]) for run_id in page)
        until_s = min(max(max(ends[run_id]) for run_id in page) + TAIL_S, self._end_s)
        return page, until_s, max(until_s - from_s, TAIL_S)

    def _add_pages(self, pages: Iterable[_Page], missing: set[_Part]) -> None:
        """Add the runs of pages, and the `missing` parts that were not found where they should
        be.
        """
        answers = [
            self._newest(RUN_SERIES, {**self._policies, "run_id": page}, at_s, reach_s)
            for page, at_s, reach_s in pages
        ]
        for answer in answers:
            for labels, value in answer.result():
                add_series(self._found.edges, labels, value)
                if labels["__name__"] == m.RUN_START.name:
                    missing.discard((labels.get("instance", ""), labels["run_id"]))
        for page in _chunks(sorted({run_id for _, run_id in missing})):
            matchers = {**self._policies, "run_id": page}
            for labels, value in self._server.newest(
                RUN_SERIES, matchers, self._end_s, self._window_s
            ):
                add_series(self._found.edges, labels, value)

    def _add_pods(self) -> None:
        labels = ["instance", "uuid", "namespace"]
        for one in self._server.presence([m.GPU_POD_INFO], {}, self._start_s, self._end_s, labels):
            self._found.pods.append((one.labels, one.first_s, one.last_s))


def _pages_by_end(ends: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Return the runs in pages of limited length, and of limited time between their ends."""
    pages: list[list[str]] = []
    first_s = -math.inf
    for run_id in sorted(ends, key=lambda one: max(ends[one])):
        end_s = max(ends[run_id])
        if not pages or len(pages[-1]) == PAGE_RUNS or end_s > first_s + PAGE_S:
            pages.append([])
            first_s = end_s
        pages[-1].append(run_id)
    return pages


def _chunks(run_ids: Sequence[str]) -> list[Sequence[str]]:
    return [run_ids[at : at + PAGE_RUNS] for at in range(0, len(run_ids), PAGE_RUNS)]
