"""Newest runs of a source, read in pages: the cost grows with the answer, not with the past.

An exporter has pages of its run API. A server answers one query for a page, and a history is read
once for a page.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from wattline.contract import metrics as m
from wattline.contract.api import MAX_RUNS_LISTED
from wattline.contract.metrics import Metric
from wattline.contract.run import Run, RunFormatError
from wattline_analyzer.core.devices import GpuModel
from wattline_analyzer.core.facts import Fact
from wattline_analyzer.core.recorded_run import RUN_FACTS, gpu_models, read_run
from wattline_analyzer.core.run_catalog import RunEntry, run_entry
from wattline_analyzer.core.runs.samples import LEDGER_S
from wattline_analyzer.core.runs.scrapes import AHEAD_S, PATIENCE_S, scrape_timing
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.sources.base import FetchError, HttpSource, SampleSource, Text
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.sources.open import running_exporter
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.core.sources.promql import InstantServer

PAGE_RUNS = 200
"""Maximum number of runs of a page."""
_TAIL_S = 600.0
"""Time for which exporters show the series of a run after its end."""
_FIRST_WINDOW_S = 3_600.0
_GROWTH = 6.0
"""Time in which a limited number of runs is searched at first, and its growth."""
_MODELS_S = 3_600.0
"""Age up to which the model of a GPU is searched at first."""
_SAME_START_S = 1.0
"""Largest difference of the starts of one run in a ledger and in samples, whose clocks may have
been set.
"""


@dataclass(frozen=True, slots=True)
class RunList:
    """Runs, the newest first; `is_cut` is True if there are more."""

    entries: Sequence[RunEntry]
    is_cut: bool


def list_runs(source: SampleSource, since_s: float, limit: int | None) -> RunList:
    """Return the newest `limit` runs, or all, that did not end before the last `since_s` seconds.

    Raises FetchError.
    """
    start_s = time.time() - since_s
    if isinstance(source, HttpSource):
        listed = _list_of_exporter(source, start_s, limit)
        if listed is not None:
            return listed
    if not isinstance(source, PrometheusSource):
        return _list_of_samples(_Samples(source), start_s, limit)
    with closing(InstantServer(source.address, source.access)) as server:
        return _list_of_samples(_Server(source, server), start_s, limit)


# Run API of an exporter


def _list_of_exporter(source: HttpSource, start_s: float, limit: int | None) -> RunList | None:
    """Return the runs of an exporter's ledger; None for a server without a run API.

    Running runs have pages of their own. Ended ones are read up to the first page without a run
    that was active since `start_s`.
    """
    running = _api_page(source, MAX_RUNS_LISTED, {"state": "running"})
    if running is None:
        return None
    active = {run.run_id: run for run in running}
    size = MAX_RUNS_LISTED if limit is None else min(limit + 1, MAX_RUNS_LISTED)
    last: Run | None = None
    listed = 0
    while limit is None or listed <= limit:
        page = _api_page(source, size, {} if last is None else {"before": last.run_id})
        if page is None:
            raise FetchError(f"cannot list the runs of {source.name}", "repeat the command")
        found = [run for run in page if run.ended_at is None or run.ended_at >= start_s]
        active.update((run.run_id, run) for run in found)
        listed += len(found)
        if len(page) < size or not found or page[-1] == last:
            break
        last = page[-1]
    newest = sorted(active.values(), key=lambda run: (run.started_at, run.run_id), reverse=True)
    return RunList(
        [run_entry(run, fresh=True) for run in newest[:limit]],
        limit is not None and len(newest) > limit,
    )


def _api_page(source: HttpSource, size: int, chosen: Mapping[str, str]) -> list[Run] | None:
    """Return a page of runs; None from a server without a run API. Raises FetchError."""
    response = source.get("/api/v1/runs", {"limit": str(size), **chosen})
    try:
        documents: Any = response.json() if response.ok else None
    except ValueError:
        return None
    if not isinstance(documents, list):
        return None
    try:
        return [Run.parse(one) for one in documents]
    except RunFormatError as error:
        raise FetchError(
            f"cannot read the runs of {source.name}: {error}",
            "use an analyzer of the exporter's version",
        ) from error


# Samples of a server or a history


@dataclass(frozen=True, slots=True)
class _Sight:
    """A run with its start, and the times of its last samples: of the instance whose last sample
    is the oldest (`first_last_s`), and of that whose is the newest (`last_s`).
    """

    run_id: str
    start_s: float
    first_last_s: float
    last_s: float
    is_ended: bool
    instances: int


class _Pages(Protocol):
    """Reader of the samples of one kind of source. All methods raise FetchError."""

    page_s: float
    """Longest time between the last samples of the runs of a page."""

    @property
    def source(self) -> SampleSource: ...

    def facts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> list[Fact]:
        """Return the newest sample of each series."""

    def newest_s(self) -> float:
        """Return a time that is not before the newest sample."""

    def sights(self, start_s: float, end_s: float) -> list[_Sight]:
        """Return the runs with samples in a time range that did not end before its start."""

    def page(self, sights: Sequence[_Sight]) -> list[Fact]:
        """Return the facts of runs."""

    def recent(self, sights: Sequence[_Sight], since_s: float) -> set[str]:
        """Return the ids of the runs with samples since a time."""


class _Samples:
    """Reader of a source of raw samples. A page covers the time for which all samples are read."""

    page_s = 600.0

    def __init__(self, source: SampleSource) -> None:
        self.source = source

    def facts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> list[Fact]:
        return self.source.facts(metrics, matchers, start_s, end_s)

    def newest_s(self) -> float:
        now_s = time.time() + AHEAD_S
        if isinstance(self.source, HistorySource):
            return min(self.source.span_s()[1], now_s)
        return now_s

    def sights(self, start_s: float, end_s: float) -> list[_Sight]:
        facts = self.facts([m.RUN_START, m.RUN_END], {}, start_s, end_s)
        last_s = {_part(fact): fact.t for fact in facts if fact.metric is m.RUN_START}
        return _sights(facts, last_s, start_s)

    def page(self, sights: Sequence[_Sight]) -> list[Fact]:
        own = {"run_id": [one.run_id for one in sights]}
        start_s = min(one.first_last_s for one in sights) - LEDGER_S
        return self.facts(RUN_FACTS, own, start_s, max(one.last_s for one in sights))

    def recent(self, sights: Sequence[_Sight], since_s: float) -> set[str]:
        return {one.run_id for one in sights if one.last_s >= since_s}


class _Server:
    """Reader of a server by queries for newest values, whose times are not known."""

    page_s = 6 * 3_600.0

    def __init__(self, source: PrometheusSource, server: InstantServer) -> None:
        self.source = source
        self._server = server

    def facts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> list[Fact]:
        by_name = {metric.name: metric for metric in metrics}
        found: dict[tuple[str, ...], Fact] = {}
        for labels, value in self._server.newest(metrics, matchers, end_s, end_s - start_s):
            metric = by_name[labels["__name__"]]
            named = {
                name: text
                for name, text in labels.items()
                if text and name not in ("__name__", "instance", "job")
            }
            instance = labels.get("instance", "")
            own = (named.get(name, "") for name in metric.labels)
            fact = Fact(metric, instance, named, end_s, value, end_s, value, value)
            found[metric.name, instance, *own] = fact
        return list(found.values())

    def newest_s(self) -> float:
        return time.time() + AHEAD_S

    def sights(self, start_s: float, end_s: float) -> list[_Sight]:
        facts = self.facts([m.RUN_START, m.RUN_END, m.RUN_DURATION], {}, start_s, end_s)
        last_s = {_part(fact): fact.value for fact in facts if fact.metric is m.RUN_START}
        for fact in facts:
            if fact.metric is m.RUN_DURATION and _part(fact) in last_s:
                last_s[_part(fact)] += fact.value
        return _sights(facts, last_s, start_s)

    def page(self, sights: Sequence[_Sight]) -> list[Fact]:
        """Return the facts by one query; a second one finds the times of runs at several
        addresses, and another one runs that are not where their clock says.
        """
        run_ids = {one.run_id for one in sights}
        start_s = min(one.first_last_s for one in sights) - LEDGER_S
        end_s = min(max(one.last_s for one in sights) + _TAIL_S, self.newest_s())
        facts = self.facts(RUN_FACTS, {"run_id": run_ids}, start_s, end_s)
        missing = run_ids - {one.labels["run_id"] for one in facts if one.metric is m.RUN_START}
        if missing:
            oldest_s = min(one.start_s for one in sights)
            facts += self.facts(RUN_FACTS, {"run_id": missing}, oldest_s, self.newest_s())
        several = {one.run_id for one in sights if one.instances > 1}
        if not several:
            return facts
        timed = self.source.facts([m.RUN_START], {"run_id": several}, start_s, end_s)
        by_part = {_part(fact): fact for fact in timed}
        return [
            by_part.get(_part(fact), fact) if fact.metric is m.RUN_START else fact for fact in facts
        ]

    def recent(self, sights: Sequence[_Sight], since_s: float) -> set[str]:
        run_ids = [one.run_id for one in sights]
        if not run_ids:
            return set()
        facts = self.facts([m.RUN_START], {"run_id": run_ids}, since_s, self.newest_s())
        return {fact.labels["run_id"] for fact in facts}


def _part(fact: Fact) -> tuple[str, str]:
    return fact.instance, fact.labels["run_id"]


def _sights(
    facts: Iterable[Fact], last_s: Mapping[tuple[str, str], float], start_s: float
) -> list[_Sight]:
    """Return the runs, the newest first; `last_s` are the times of last samples by instance and
    run. Runs that ended on all instances before `start_s` are left out.
    """
    starts: defaultdict[str, dict[str, float]] = defaultdict(dict)
    ends: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for fact in facts:
        if fact.metric is m.RUN_START:
            starts[fact.labels["run_id"]][fact.instance] = fact.value
        elif fact.metric is m.RUN_END:
            ends[fact.labels["run_id"]][fact.instance] = fact.value
    found = []
    for run_id, of_run in starts.items():
        ended = ends[run_id]
        if all(ended.get(instance, start_s) < start_s for instance in of_run):
            continue
        lasts_s = [last_s[instance, run_id] for instance in of_run]
        found.append(
            _Sight(
                run_id=run_id,
                start_s=max(of_run.values()),
                first_last_s=min(lasts_s),
                last_s=max(lasts_s),
                is_ended=of_run.keys() <= ended.keys(),
                instances=len(of_run),
            )
        )
    return sorted(found, key=lambda one: (one.start_s, one.run_id), reverse=True)


def _list_of_samples(pages: _Pages, start_s: float, limit: int | None) -> RunList:
    sights = _newest_sights(pages, start_s, limit)
    chosen = sights[:limit]
    if not chosen:
        return RunList([], is_cut=False)
    facts: dict[str, list[Fact]] = {one.run_id: [] for one in chosen}
    for page in _pages_by_time(chosen, pages.page_s):
        for fact in pages.page(page):
            facts[fact.labels["run_id"]].append(fact)
    models = _models(pages, chosen, facts.values())
    fresh = _fresh(pages, [one for one in chosen if not one.is_ended])
    ledger = _LocalLedger()
    entries = []
    for sight in chosen:
        run, _ = read_run(facts[sight.run_id], table_of(()), models)
        if run.state != "ended" and sight.instances == 1:
            run = ledger.ended(run) or run
        entries.append(run_entry(run, fresh=sight.run_id in fresh))
    return RunList(entries, len(sights) > len(chosen))


def _newest_sights(pages: _Pages, start_s: float, limit: int | None) -> list[_Sight]:
    """Return the runs, the newest first; with a limit at least one more, if there are more.

    The time is searched backwards: a run that started in a window has samples there.
    """
    end_s = pages.newest_s()
    window_s = _FIRST_WINDOW_S
    while limit is not None and window_s < end_s - start_s:
        from_s = end_s - window_s
        found = [one for one in pages.sights(from_s, end_s) if one.start_s >= from_s]
        if len(found) > limit:
            return found
        window_s *= _GROWTH
    return pages.sights(start_s, end_s)


def _pages_by_time(sights: Iterable[_Sight], page_s: float) -> Iterator[list[_Sight]]:
    page: list[_Sight] = []
    for one in sorted(sights, key=lambda one: one.first_last_s):
        if page and (len(page) == PAGE_RUNS or one.last_s > page[0].first_last_s + page_s):
            yield page
            page = []
        page.append(one)
    yield page


def _models(
    pages: _Pages, sights: Sequence[_Sight], facts: Iterable[Iterable[Fact]]
) -> dict[str, GpuModel]:
    """Return the models of GPUs by UUID. Those that are not visible at the end, such as after a
    restart of the exporter, are searched in the time of the runs.
    """
    used = {
        fact.labels["device"]
        for of_run in facts
        for fact in of_run
        if fact.metric is m.RUN_ENERGY and fact.labels["component"] == "gpu"
    }
    end_s = max(one.last_s for one in sights)
    models = gpu_models(pages.facts([m.GPU_INFO], {}, end_s - _MODELS_S, end_s))
    if used <= models.keys():
        return models
    first_s = min(one.start_s for one in sights)
    return gpu_models(pages.facts([m.GPU_INFO], {}, first_s, end_s)) | models


def _fresh(pages: _Pages, sights: Sequence[_Sight]) -> set[str]:
    """Return the ids of runs whose last sample is recent."""
    now_s = time.time()
    timing = scrape_timing(pages.source, now_s, set()) if sights else None
    if timing is None:
        return set()
    return pages.recent(sights, now_s - max(3 * timing.interval_s, PATIENCE_S))


class _LocalLedger:
    """The newest runs of the exporter of this machine, if it runs; it is read once."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] | None = None

    def ended(self, run: Run) -> Run | None:
        """Return the ledger's record of a run whose end was not scraped; None if the ledger does
        not have it as ended.
        """
        if self._runs is None:
            self._runs = _local_runs()
        known = self._runs.get(run.run_id)
        if known is None or known.state != "ended":
            return None
        return known if abs(known.started_at - run.started_at) <= _SAME_START_S else None


def _local_runs() -> dict[str, Run]:
    local = running_exporter()
    if local is None:
        return {}
    with closing(local):
        if not isinstance(local, HttpSource):
            return {}
        return {run.run_id: run for run in _api_page(local, MAX_RUNS_LISTED, {}) or ()}
