"""Tallies of series in a time window, from the raw samples of an exporter or of its history.

They follow the definitions of the queries, which a server computes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.counter_arrays import counter_steps
from wattline_analyzer.core.devices import SIMULATED
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.core.sources.base import SampleSource
from wattline_analyzer.core.sources.promql import EDGE_MS, LATE_MS, MEMORY_MS
from wattline_analyzer.usage.cut import GPU_MODEL, NAMESPACE, RUN_KIND, device_keys, run_keys
from wattline_analyzer.usage.fleet import Keys

RunKey = tuple[str, str]
"""Instance and run id."""
_EDGE_S, _MEMORY_S, _LATE_S = EDGE_MS / 1_000, MEMORY_MS / 1_000, LATE_MS / 1_000
_ZONES = {"package": "cpu", "dram": "dram"}
LOCAL = "(this node)"
"""Name of the node of a history, which has no instance."""
METRICS: tuple[Metric, ...] = (
    *(
        m.GPU_ENERGY,
        m.CPU_ENERGY,
        m.EMISSIONS,
        m.GPU_INFO,
        m.GPU_POD_INFO,
        m.RUN_INFO,
        m.RUN_GPU_INFO,
        m.RUN_START,
    ),
    *(
        m.RUN_END,
        m.RUN_DURATION,
        m.RUN_ATTRIBUTED_ENERGY,
        m.RUN_ENERGY,
        m.RUN_ENERGY_UNCERTAINTY,
        m.RUN_EMISSIONS,
    ),
    *(m.RUN_WORK, m.RUN_WORK_UNIT),
)


@dataclass(slots=True, eq=False)
class Tally:
    """Values of one series before and within the window, from parts in the order of time."""

    labels: Mapping[str, str]
    start_s: float
    is_counter: bool = True
    before: float | None = None
    before_s: float = -np.inf
    first_s: float = np.inf
    last_s: float = -np.inf
    longest_gap_s: float = 0.0
    """Longest time between two samples in the window."""
    soon_least: float = np.inf
    """Lowest value in the first three hours of the window."""
    highest: float = -np.inf
    count: int = 0
    total: float = 0.0
    """Number and sum of the values in the window."""
    last: float | None = None
    rise: float = 0.0
    """Increase of a counter in the window since the last value before it, or since its first
    value.
    """
    counted: float | None = None
    """Latest value in the window that is not late."""

    def add(self, t: FloatArray, value: FloatArray) -> None:
        split = int(np.searchsorted(t, self.start_s, side="right"))
        if split:
            self.before, self.before_s = float(value[split - 1]), float(t[split - 1])
        t, value = t[split:], value[split:]
        if not len(t):
            return
        gaps_s = np.diff(t, prepend=self.last_s if self.is_within else t[0])
        self.longest_gap_s = max(self.longest_gap_s, float(gaps_s.max()))
        self.first_s, self.last_s = min(self.first_s, float(t[0])), float(t[-1])
        if self.is_counter:
            self._count(t, value)
        soon = value[t <= self.start_s + _MEMORY_S]
        self.soon_least = min(self.soon_least, float(soon.min(initial=np.inf)))
        self.count, self.total = self.count + len(value), self.total + float(value.sum())
        self.highest, self.last = max(self.highest, float(value.max())), float(value[-1])

    def _count(self, t: FloatArray, value: FloatArray) -> None:
        earlier = self.counted
        if earlier is None and self.is_known_before(_EDGE_S):
            earlier = self.before
        if earlier is None:
            earlier = float(value[0])
        # without limits of the rate the time of the value before makes no difference
        steps = counter_steps(np.append(t[0] - 1.0, t), np.append(earlier, value))
        self.rise += float(steps.increase[1:].sum())
        newest = int(steps.kept[-1])
        self.counted = float(value[newest - 1]) if newest else earlier

    def is_known_before(self, age_s: float) -> bool:
        return self.before_s > self.start_s - age_s

    @property
    def known_s(self) -> float:
        """Time from which the window's energy is known: its start if there is a recent sample
        before it.
        """
        return self.start_s if self.is_known_before(_EDGE_S) else self.first_s

    @property
    def is_within(self) -> bool:
        return self.last is not None

    @property
    def is_soon(self) -> bool:
        return self.first_s <= self.start_s + _MEMORY_S


@dataclass(frozen=True, slots=True)
class WindowTallies:
    """Tallies of all series by metric and labels; `start_s` is the start of the window."""

    start_s: float
    by_metric: Mapping[str, Mapping[tuple[str, ...], Tally]]
    _models: dict[tuple[str, str], str] = field(default_factory=dict)

    def of(self, metric: Metric) -> Iterator[Tally]:
        """Yield the tallies of a metric with samples in the window."""
        return (tally for tally in self.by_metric.get(metric.name, {}).values() if tally.is_within)

    def one(self, metric: Metric, run: RunKey) -> Tally | None:
        """Return the tally of a metric that has one series for a run."""
        tally = self.by_metric.get(metric.name, {}).get(run)
        return tally if tally and tally.is_within else None

    def counted_before(self, tally: Tally) -> float:
        """Return the value of a counter of a run before the window; see `promql.run_counter`."""
        if tally.before is not None and tally.is_known_before(_MEMORY_S) and tally.is_soon:
            return tally.before
        run = run_of(tally)
        start, end = self.one(m.RUN_START, run), self.one(m.RUN_END, run)
        late = start is not None and start.is_soon and start.highest < self.start_s - _LATE_S
        late = late and start is not None and not start.is_known_before(_MEMORY_S)
        over = end is not None and end.is_soon and end.highest <= self.start_s
        return tally.soon_least if tally.is_soon and (late or over) else 0.0

    def increase(self, tally: Tally) -> float:
        """Return the increase of a counter of a run in the window."""
        return tally.highest - self.counted_before(tally)

    def models(self) -> Mapping[tuple[str, str], str]:
        """Return the model of each GPU by instance and UUID."""
        if not self._models:
            for tally in self.of(m.GPU_INFO):
                place = tally.labels.get("instance", ""), tally.labels.get("uuid", "")
                self._models[place] = tally.labels.get("name", "")
        return self._models

    @property
    def simulated(self) -> bool:
        return any(name.startswith(SIMULATED) for name in self.models().values())


def read_window(
    parts: Iterable[Sequence[tuple[Mapping[str, str], FloatArray, FloatArray]]],
    start_s: float,
    metrics: Sequence[Metric],
) -> WindowTallies:
    """Return the tallies of series that come in parts, in the order of time."""
    by_name = {metric.name: metric for metric in metrics}
    found: defaultdict[str, dict[tuple[str, ...], Tally]] = defaultdict(dict)
    for part in parts:
        for labels, t, value in part:
            name = labels["__name__"]
            own = ("run_id",) if name == m.RUN_INFO.name else by_name[name].labels
            key = labels.get("instance", ""), *(labels.get(label, "") for label in own)
            known = found[name].setdefault(
                key, Tally(labels, start_s, by_name[name].kind == "counter")
            )
            known.labels = {
                **known.labels,
                **labels,
            }  # the user of a run may be known some time after its start
            known.add(t, value)
    return WindowTallies(start_s, found)


def fetch_window(
    source: SampleSource, start_s: float, end_s: float, metrics: Sequence[Metric]
) -> WindowTallies:
    """Read the window from a source. Raises FetchError."""
    parts = source.parts(metrics, {}, start_s - _MEMORY_S, end_s)
    return read_window(parts, start_s, metrics)


def run_of(tally: Tally) -> RunKey:
    return tally.labels.get("instance", ""), tally.labels.get("run_id", "")


class GroupKeys:
    """Keys of runs and devices in a window."""

    def __init__(self, by: Keys, window: WindowTallies) -> None:
        self.by = by
        self._models = window.models()
        self._labels = {run_of(tally): dict(tally.labels) for tally in window.of(m.RUN_INFO)}
        gpus: defaultdict[RunKey, list[Tally]] = defaultdict(list)
        for tally in window.of(m.RUN_GPU_INFO):
            gpus[run_of(tally)].append(tally)
        self.gpu_counts = {run: len(tallies) for run, tallies in gpus.items()}
        pods = list(window.of(m.GPU_POD_INFO)) if "namespace" in by else []
        for run, own in gpus.items():
            labels = self._labels.get(run)
            if labels is not None:
                labels[GPU_MODEL] = max(
                    self._model(run[0], tally.labels.get("uuid", "")) for tally in own
                )
                if pods and not labels.get(NAMESPACE):
                    labels[NAMESPACE] = max(
                        (_namespace(tally, pod) for tally in own for pod in pods), default=""
                    )

    def _model(self, instance: str, uuid: str) -> str:
        return self._models.get((instance, uuid), "")

    def of_run(self, run: RunKey, gpu: str | None = None) -> Keys | None:
        """Return the keys of a run, on one GPU if it is given; None for a run without
        information.
        """
        labels = self._labels.get(run)
        if labels is None:
            return None
        own = labels if gpu is None else {**labels, GPU_MODEL: self._model(run[0], gpu)}
        return run_keys(self.by, _named_node(own))

    def of_device(
        self,
        tally: Tally,
        gpu: str,
        naming: Callable[[Keys, Mapping[str, str]], Keys] = device_keys,
    ) -> Keys:
        labels = _named_node(tally.labels)
        return naming(
            self.by, {**labels, GPU_MODEL: self._model(tally.labels.get("instance", ""), gpu)}
        )

    def label_values(self, label: str) -> set[tuple[str, str]]:
        """Return the pairs of a run's kind and its value of a label."""
        return {
            (own.get("label_discovered", "") or RUN_KIND, own.get(label, ""))
            for own in self._labels.values()
        }


def _named_node(labels: Mapping[str, str]) -> dict[str, str]:
    return {**labels, "instance": labels.get("instance", "") or LOCAL}


def _namespace(gpu: Tally, pod: Tally) -> str:
    """Return the namespace of a pod that had the GPU of a run during the run, else an empty
    text.
    """
    same = all(gpu.labels.get(name) == pod.labels.get(name) for name in ("instance", "uuid"))
    return (
        pod.labels.get("namespace", "")
        if same and pod.first_s <= gpu.last_s and gpu.first_s <= pod.last_s
        else ""
    )


def component_of(tally: Tally) -> tuple[str, str]:
    """Return component and UUID of the series of a device; the UUID is empty for other devices."""
    labels = tally.labels
    if "uuid" in labels:
        return "gpu", labels["uuid"]
    component = labels.get("component") or _ZONES.get(labels.get("zone", ""), "")
    return component, labels.get("device", "") if component == "gpu" else ""
