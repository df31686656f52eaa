"""Facts of a usage window: edges of counters, and the series of runs, by node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from wattline.contract import metrics as m
from wattline.contract.api import OTHER_RUNS
from wattline.contract.identity import Sighting, sightings_by_node
from wattline.contract.metrics import Metric
from wattline.contract.run_series import SeriesRow
from wattline.counters import CounterLimits
from wattline_analyzer.core.sources.base import FetchError

REACH_S = 3_600.0
"""Greatest age of a sample before the start of the window. A node without one counts from its
first sample in the window.
"""
HIDDEN_S = 80.0
"""Time after which a new owner has a value: exporters show its counters at 0 for 65 s, and a scrape
follows.
"""
LOCAL = "(this node)"
"""Name of the node of a history, whose series have no instance."""
DEVICES = (m.GPU_ENERGY, m.CPU_ENERGY)
OWNERS = (m.OWNER_ENERGY, m.OWNER_EMISSIONS, m.OWNER_GPU_SECONDS)
COUNTERS = (*DEVICES, *OWNERS, m.EMISSIONS, m.RUN_ATTRIBUTED_ENERGY)
"""Counters of nodes; those of attributed energy are of no run, or of runs without other series."""
INFOS = (m.GPU_INFO, m.NODE_INFO)
RUN_COUNTERS = (m.RUN_ATTRIBUTED_ENERGY, m.RUN_EMISSIONS, m.RUN_WORK, m.RUN_DURATION)
"""Values of runs that a window has a part of."""
RUN_SERIES = (
    *RUN_COUNTERS,
    m.RUN_INFO,
    m.RUN_START,
    m.RUN_END,
    m.RUN_GPU_INFO,
    m.RUN_ENERGY,
    m.RUN_ENERGY_UNCERTAINTY,
    m.RUN_ENERGY_BEFORE_USE,
    m.RUN_POWER_MAX,
    m.RUN_WORK_UNIT,
    m.RUN_PHASE_SECONDS,
    m.RUN_PHASE_ENERGY,
    m.RUN_PHASE_WORK,
)
NOT_RUNS = ("", OTHER_RUNS)
"""Run ids of attributed energy that is of no run, or of runs beyond the limits of an exporter."""
_BY_NAME = {metric.name: metric for metric in (*COUNTERS, *INFOS, *RUN_SERIES, m.GPU_POD_INFO)}
_BY_NAME[m.CARBON_INTENSITY.name] = m.CARBON_INTENSITY
_IDENTITY = {name: metric.labels for name, metric in _BY_NAME.items()} | {
    m.RUN_INFO.name: ("run_id",)
}
"""Labels that tell the series of each metric apart."""
DEVICE_NAMES = frozenset(metric.name for metric in DEVICES)
_COUNTER_NAMES = frozenset(metric.name for metric in COUNTERS)
_RUN_NAMES = frozenset(metric.name for metric in RUN_SERIES)
_RUN_COUNTER_NAMES = frozenset(metric.name for metric in RUN_COUNTERS)


LATE_S = 150.0
"""Shortest time without a sample at the end of a window that is reported."""
_EARLY_S = 300.0
_EARLY_RATIO = 0.01


def end_tolerance_s(window_s: float) -> float:
    """Return the time without samples at the end of a window that is not reported."""
    return min(_EARLY_S, max(_EARLY_RATIO * window_s, LATE_S))


@dataclass(frozen=True, slots=True)
class UsageRequest:
    """Window (Unix seconds), keys of the rows, and policy of attribution."""

    by: tuple[str, ...]
    policy: str
    start_s: float
    end_s: float


class SeriesKey(NamedTuple):
    """Identity of a series: its exporter's address, the name of its metric, and the metric's
    labels.
    """

    instance: str
    name: str
    own: tuple[str, ...]

    @property
    def metric(self) -> Metric:
        return _BY_NAME[self.name]


@dataclass(slots=True)
class Edges:
    """Values of one series at the edges of a window, in its unit.

    `before` is the value at the start of the window, or at the first sample of its node; None for a
    series that began later. `first` is the value of the first sample in the window. `rise` is the
    increase since `before`, else since `first`, from all samples. None: the counter did not fall.
    """

    labels: Mapping[str, str]
    last: float
    before: float | None = None
    first: float | None = None
    soon: float | None = None
    """Value of an owner counter HIDDEN_S after the start, or after its node's first sample."""
    rise: float | None = None
    fell: bool = False
    first_s: float = -float("inf")
    last_s: float = float("inf")

    @property
    def is_hidden(self) -> bool:
        """True for an owner's counter that shows 0 at the start, as that of a new owner does."""
        return self.before == 0 and self.last > 0

    @property
    def increase(self) -> float:
        """Increase in the window. A counter without a value before the window began at 0."""
        if self.rise is None:
            return self.last - (self.before or 0.0)
        began = self.first if self.before is None and self.first is not None else 0.0
        return self.rise + began


def add_series(edges: dict[SeriesKey, Edges], labels: Mapping[str, str], value: float) -> Edges:
    """Add the latest value of a series, which two jobs of a server may have scraped; return its
    edges.
    """
    key = key_of(labels)
    known = edges.get(key)
    if known is None:
        known = edges[key] = Edges(labels, value)
        return known
    if key.name == m.RUN_INFO.name:
        known.labels = _labels([known, Edges(labels, value)])
    known.last = max(known.last, value)
    return known


def key_of(labels: Mapping[str, str]) -> SeriesKey:
    name = labels["__name__"]
    own = tuple([labels.get(label, "") for label in _IDENTITY[name]])
    return SeriesKey(labels.get("instance", ""), name, own)


@dataclass(frozen=True, slots=True)
class Counter:
    """Increase of a counter of one node in the window."""

    node: str
    metric: Metric
    labels: Mapping[str, str]
    increase: float
    reason: str
    """Why the increase is not exactly that of the window; empty if it is."""
    is_cut: bool
    """True if a part of the window was not measured."""
    hidden: float
    """Largest amount of it that may be older than the window, or than the node's first sample."""
    is_from_start: bool
    """True if it has a value at the start of the window, or at the first sample of its node."""


@dataclass(frozen=True, slots=True)
class RunReadings:
    """A run on one node: its latest values, and those at the start of the window."""

    node: str
    run_id: str
    rows: Sequence[SeriesRow]
    before: Mapping[tuple[str, tuple[str, ...]], float]
    """Values by the name of the metric and its labels."""
    reason: str
    """Why its parts in the window lack something; empty if they do not."""

    @property
    def is_cut(self) -> bool:
        return bool(self.reason)


class PodSpan(NamedTuple):
    """Time (Unix s) for which a pod had a GPU."""

    node: str
    uuid: str
    namespace: str
    first_s: float
    last_s: float


@dataclass(slots=True)
class Readings:
    """Series of a window as a source gave them, by the addresses of the exporters.

    `first_s` and `last_s` are the times of the first and last sample in the window of the addresses
    of which it is known: without a sample before the window, and without one at its end.
    """

    name: str
    start_s: float
    end_s: float
    edges: dict[SeriesKey, Edges] = field(default_factory=dict)
    first_s: dict[str, float] = field(default_factory=dict)
    last_s: dict[str, float] = field(default_factory=dict)
    intensities: dict[SeriesKey, float] = field(default_factory=dict)
    pods: list[tuple[Mapping[str, str], float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a window by node. `begins` are the times from which on nodes count that have no
    sample before the window; `ends` the times of the last samples of nodes without one at its end.
    """

    name: str
    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    begins: Mapping[str, float]
    ends: Mapping[str, float]
    fell: tuple[str, ...]
    counters: Sequence[Counter]
    runs: Sequence[RunReadings]
    models: Mapping[tuple[str, str], str]
    """Model of each GPU by node and UUID."""
    intensities: Mapping[tuple[str, str, str], float]
    """Mean intensity in g/kWh by node, basis and quality."""
    pods: Sequence[PodSpan]


def node_names(edges: Mapping[SeriesKey, Edges]) -> dict[str, str]:
    """Return the node of each address with devices: see `sightings_by_node`.

    A node's name is the address that counts. The marks of an address are the id of its machine and
    the UUIDs of its GPUs, except of GPUs on several machines, as simulated ones are.
    """
    machines = {
        key.instance: _label(key, "machine_id")
        for key in edges
        if key.name == m.NODE_INFO.name and _label(key, "machine_id")
    }
    gpus: defaultdict[str, set[str]] = defaultdict(set)
    machines_of: defaultdict[str, set[str]] = defaultdict(set)
    times_s: dict[str, tuple[float, float]] = {}
    for key, one in edges.items():
        if key.name not in DEVICE_NAMES:
            continue
        first_s, last_s = times_s.get(key.instance, (one.first_s, one.last_s))
        times_s[key.instance] = min(first_s, one.first_s), max(last_s, one.last_s)
        if key.name == m.GPU_ENERGY.name:
            uuid = _label(key, "uuid")
            gpus[key.instance].add(uuid)
            if key.instance in machines:
                machines_of[uuid].add(machines[key.instance])
    sightings = []
    for instance, (first_s, last_s) in times_s.items():
        marks: set[tuple[str, str]] = {
            ("gpu", uuid) for uuid in gpus[instance] if len(machines_of[uuid]) <= 1
        }
        if instance in machines:
            marks.add(("machine", machines[instance]))
        sightings.append(
            Sighting(instance, frozenset(marks or {("address", instance)}), first_s, last_s)
        )
    return {one.address: node[0].address for node in sightings_by_node(sightings) for one in node}


def _label(key: SeriesKey, name: str) -> str:
    return key.own[key.metric.labels.index(name)]


def facts_of(readings: Readings) -> Facts:
    """Return the facts by node."""
    names = node_names(readings.edges)
    nodes = {one: names[one] or LOCAL for one in names}
    begins = _begins(readings, nodes)
    ends = {nodes[one]: t for one, t in readings.last_s.items() if one in nodes}
    for instance, node in nodes.items():
        if instance not in readings.last_s:
            ends.pop(node, None)
    counters = list(_counters(readings, nodes, begins))
    runs = list(_runs(readings, nodes, begins))
    models = {}
    for key, edges in readings.edges.items():
        if key.name == m.GPU_INFO.name and key.instance in nodes:
            models[nodes[key.instance], edges.labels["uuid"]] = edges.labels.get("name", "")
    return Facts(
        name=readings.name,
        start_s=readings.start_s,
        end_s=readings.end_s,
        nodes=tuple(sorted(set(nodes.values()))),
        begins=begins,
        ends=ends,
        fell=tuple(sorted({one.node for one in counters if _FELL in one.reason})),
        counters=counters,
        runs=runs,
        models=models,
        intensities={
            (nodes[key.instance], _label(key, "basis"), _label(key, "quality")): mean
            for key, mean in readings.intensities.items()
            if key.instance in nodes
        },
        pods=[
            PodSpan(
                nodes[labels.get("instance", "")],
                labels["uuid"],
                labels["namespace"],
                first_s,
                last_s,
            )
            for labels, first_s, last_s in readings.pods
            if labels.get("instance", "") in nodes
        ],
    )


def _begins(readings: Readings, nodes: Mapping[str, str]) -> dict[str, float]:
    """Return the times from which nodes count that have no sample before the window."""
    begins: dict[str, float] = {}
    for instance, first_s in readings.first_s.items():
        node = nodes.get(instance)
        if node is not None:
            begins[node] = min(first_s, begins.get(node, first_s))
    for instance, node in nodes.items():
        if instance not in readings.first_s:
            begins.pop(node, None)
    return begins


_FELL = "its counters fell"


def _counters(
    readings: Readings, nodes: Mapping[str, str], begins: Mapping[str, float]
) -> Iterator[Counter]:
    grouped: defaultdict[SeriesKey, list[Edges]] = defaultdict(list)
    for key, edges in readings.edges.items():
        is_of_run = key.name == m.RUN_ATTRIBUTED_ENERGY.name and key.own[0] not in NOT_RUNS
        if key.name in _COUNTER_NAMES and not is_of_run and key.instance in nodes:
            grouped[SeriesKey(nodes[key.instance], key.name, key.own)].append(edges)
    for (node, name, _), several in grouped.items():
        metric = _BY_NAME[name]
        one = several[0] if len(several) == 1 else _joined(several)
        reasons = []
        is_from_start = one.before is not None
        if node in begins and one.before:
            reasons.append(begin_text(node, begins[node], readings))
        elif node not in begins and _counts_from_first(metric, one):
            one.before = one.first
            reasons.append(f"{node}: a device counts from its first sample")
        if one.fell:
            reasons.append(f"{node}: {_FELL}, and what it used between two samples is not known")
        is_cut = bool(reasons)
        hidden = 0.0
        if metric in OWNERS and one.is_hidden:
            hidden = one.increase if one.soon is None else min(one.soon, one.increase)
        if hidden:
            reasons.append(f"{node}: an owner was new at the start, and is counted 65 s late")
        text = "; ".join(reasons)
        yield Counter(node, metric, one.labels, one.increase, text, is_cut, hidden, is_from_start)


def _counts_from_first(metric: Metric, one: Edges) -> bool:
    """Return True for the counter of a device that appeared on a known node. It may be older than
    its first sample, such as that of a GPU that was lost for hours.
    """
    is_of_device = metric in DEVICES or (
        metric is m.RUN_ATTRIBUTED_ENERGY and not one.labels.get("run_id")
    )
    return is_of_device and one.before is None and one.first is not None


def _joined(several: Sequence[Edges]) -> Edges:
    """Return one counter that several addresses show, one after another or at the same time."""
    ordered = sorted(several, key=lambda one: (one.before is None, one.first_s, one.last_s))
    start = ordered[0]
    last = start.last
    last_s = start.last_s
    rise = start.increase
    fell = start.fell
    for one in ordered[1:]:
        if one.first is not None and one.first_s > last_s:
            step = CounterLimits().step(last, one.first, one.first_s - last_s)
            rise += step.increase + (one.increase - one.first if one.before is None else 0.0)
            fell |= step.kind != "rise" or one.fell
            last = one.last
            last_s = one.last_s
        elif one.last_s >= last_s and one.last > last:
            rise += one.last - last
            last = one.last
            last_s = one.last_s
    began = start.first if start.before is None and start.first is not None else 0.0
    return Edges(
        start.labels,
        last,
        before=start.before,
        first=start.first,
        soon=start.soon,
        rise=rise - began,
        fell=fell,
    )


def begin_text(node: str, begin_s: float, readings: Readings | Facts) -> str:
    """Return the reason of a figure of a node without a sample before the window."""
    begin = datetime.fromtimestamp(begin_s).astimezone()
    is_long = readings.end_s - readings.start_s > 86_400
    return (
        f"{node} counts from {begin:%Y-%m-%d %H:%M}"
        if is_long
        else (f"{node} counts from {begin:%H:%M:%S}")
    )


def _runs(
    readings: Readings, nodes: Mapping[str, str], begins: Mapping[str, float]
) -> Iterator[RunReadings]:
    found: defaultdict[tuple[str, str], dict[tuple[str, tuple[str, ...]], Edges]]
    found = defaultdict(dict)
    for key, edges in readings.edges.items():
        if key.name in _RUN_NAMES and key.own[0] not in NOT_RUNS and key.instance in nodes:
            series = found[nodes[key.instance], key.own[0]]
            own = key.name, key.own
            series[own] = edges if own not in series else _newest(series[own], edges)
    for (node, run_id), series in found.items():
        start = series.get((m.RUN_START.name, (run_id,)))
        if start is None:
            continue
        rows = []
        before = {}
        for own, edges in series.items():
            rows.append(SeriesRow(_BY_NAME[own[0]], edges.labels, edges.last))
            if edges.before is not None and own[0] in _RUN_COUNTER_NAMES:
                before[own] = edges.before
        reason = ""
        if node in begins and start.last < begins[node]:
            reason = begin_text(node, begins[node], readings)
        yield RunReadings(node, run_id, rows, before, reason)


def _newest(one: Edges, other: Edges) -> Edges:
    """Return the values of a run that two addresses of its node show: they only rise."""
    known = [edges.before for edges in (one, other) if edges.before is not None]
    return Edges(_labels((one, other)), max(one.last, other.last), before=max(known, default=None))


def _labels(several: Iterable[Edges]) -> dict[str, str]:
    """Return the labels of all series; the user of a run may be known some time after its start."""
    return {name: text for one in several for name, text in one.labels.items() if text}


def no_samples(name: str, start_s: float, end_s: float, remedy: str) -> FetchError:
    """Return the error for a window without samples of devices at a source."""
    start, end = (datetime.fromtimestamp(t).astimezone() for t in (start_s, end_s))
    return FetchError(
        f"no samples of {m.GPU_ENERGY.name} or {m.CPU_ENERGY.name} between "
        f"{start:%Y-%m-%d %H:%M:%S %z} and {end:%Y-%m-%d %H:%M:%S %z} at {name}",
        f"{remedy}; see --since and --source",
    )
