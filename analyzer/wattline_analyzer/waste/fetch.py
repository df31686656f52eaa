"""Fetch of the samples of all GPUs, and of the runs and pods that hold them, for `analyzer
waste`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.work import SHARE_POLICY
from wattline_analyzer.core.devices import SIMULATED
from wattline_analyzer.core.fetch import TimeRange
from wattline_analyzer.core.samples import FloatArray, Samples, Series, clean, distinct
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.core.sources.open import missing_data_remedy
from wattline_analyzer.waste import intervals as i
from wattline_analyzer.waste.idle_power import latest_on_lowest_level
from wattline_analyzer.waste.model import GpuKey, HeldSpan, Holder, Thresholds, Waste
from wattline_analyzer.waste.tally import GpuTally, waste

_SIGNALS: Mapping[str, tuple[str, str, str]] = {
    m.GPU_ENERGY.name: (i.ENERGY, "", ""),
    m.GPU_POWER.name: (i.POWER, "", ""),
    m.GPU_UTILIZATION.name: (i.UTILIZATION, "engine", ""),
    m.GPU_MEMORY_USED.name: (i.MEMORY, "", ""),
    m.GPU_CLOCK.name: (i.CLOCK, "domain", "sm"),
    m.GPU_CLOCK_MAX.name: (i.CLOCK_MAX, "domain", "sm"),
}
"""Signal of a metric, and the label and value that select its series."""
_ENGINES = ("gpu", "encoder", "decoder")
_LIMITS = {"requested": i.LIMIT, "default": i.DEFAULT_LIMIT}
_SAMPLED = (
    m.GPU_ENERGY,
    m.GPU_POWER,
    m.GPU_UTILIZATION,
    m.GPU_MEMORY_USED,
    m.GPU_CLOCK,
    m.GPU_CLOCK_MAX,
    m.GPU_POWER_LIMIT,
    m.GPU_CLOCK_EVENT_SECONDS,
    m.CARBON_INTENSITY,
    m.IDLE_POWER,
    m.RUN_ATTRIBUTED_ENERGY,
)
_HELD = (m.RUN_GPU_INFO, m.RUN_INFO, m.RUN_START, m.RUN_END, m.GPU_POD_INFO, m.GPU_INFO)
_LABEL = "label_"
_SAME_S = 0.5
_LOOK_BACK_S = 600.0
_LONG_S = 21_600.0
_SHORT_S = 600.0
_Run = tuple[str, str]
"""Instance and run ID."""
_Target = tuple[str, str]
"""Instance and job: two jobs may scrape one exporter, at different times."""
_Held = tuple[_Target, str, str, str]
"""Target and UUID of a GPU, kind and name of its holder."""


@dataclass(frozen=True, slots=True)
class WasteRequest:
    """Window in Unix seconds, node (all if None), thresholds, and a constant carbon intensity in
    g/kWh.

    The samples of `gpus_at_once` GPUs are requested for six hours at once, those of more GPUs for
    less time.
    """

    start_s: float
    end_s: float
    now_s: float
    node: str | None = None
    limits: Thresholds = field(default_factory=Thresholds)
    grams_per_kwh: float | None = None
    gpus_at_once: int = 256


def fetch_waste(source: SampleSource, request: WasteRequest) -> tuple[Waste, bool]:
    """Return the waste of the window, and True if its GPUs are simulated. Raises FetchError if
    there are no GPUs.
    """
    where = {} if request.node is None else {"instance": request.node}
    span_s = request.start_s, request.end_s
    states = _States()
    step_s = _window_s(source, where, request)
    for part in _parts(source, _HELD, where, span_s, step_s):
        states.add(part)
    spans = states.spans()
    tallies = {
        key: GpuTally(key, spans.get(key, ()), request.limits, request.now_s, labels.get("gpu", ""))
        for key, labels in sorted(states.gpus.items())
    }
    # the other metrics have no run_id, and match as well
    for part in _parts(source, _SAMPLED, {**where, "run_id": ""}, span_s, step_s):
        for key, signals in _by_gpu(part, tallies, request.grams_per_kwh):
            tallies[key].add(signals)
    if not tallies:
        where_text = "" if request.node is None else f" of node {request.node!r}"
        raise FetchError(
            f"no GPU{where_text} at {source.name} in the window",
            f"{missing_data_remedy(source)}; see --since, --until and --node",
        )
    lines = [] if spans else ["no run and no pod in the window: all work counts as unclaimed"]
    simulated = any(labels.get("name", "").startswith(SIMULATED) for labels in states.gpus.values())
    return waste(list(tallies.values()), lines), simulated


def _window_s(source: SampleSource, where: Mapping[str, str], request: WasteRequest) -> float:
    """Return the length of one request for samples, so that those of all GPUs fit into memory."""
    newest = source.fetch(
        [m.GPU_INFO], where, max(request.start_s, request.end_s - _LOOK_BACK_S), request.end_s
    )
    gpus = len(set(zip(newest.texts("instance"), newest.texts("uuid"), strict=True)))
    return (
        math.inf
        if gpus <= request.gpus_at_once
        else max(request.gpus_at_once / gpus * _LONG_S, _SHORT_S)
    )


def _parts(
    source: SampleSource,
    metrics: Sequence[m.Metric],
    where: Mapping[str, str],
    span_s: TimeRange,
    step_s: float,
) -> Iterator[list[Series]]:
    """Yield the samples of the span in parts, in time order; a sample at a border can occur
    twice.
    """
    start_s, end_s = span_s
    while start_s < end_s:
        until_s = min(start_s + step_s, end_s)
        yield from source.parts(metrics, where, start_s, until_s)
        start_s = until_s


def _by_gpu(
    part: Sequence[Series],
    tallies: Mapping[GpuKey, GpuTally],
    grams_per_kwh: float | None,
) -> Iterator[tuple[GpuKey, dict[str, Samples]]]:
    """Yield the signals of each GPU in a part; idle powers go to the tallies."""
    found: defaultdict[GpuKey, defaultdict[str, list[tuple[FloatArray, FloatArray]]]]
    found = defaultdict(lambda: defaultdict(list))
    carbon: dict[str, Samples] = {}
    for labels, t, value in part:
        instance = labels.get("instance", "")
        if labels["__name__"] == m.CARBON_INTENSITY.name:
            if labels.get("basis") == "average":
                carbon[instance] = clean(t, value)
            continue
        if labels["__name__"] == m.IDLE_POWER.name:
            tally = tallies.get(GpuKey(instance, labels.get("device", "")))
            if tally is not None and labels.get("component") == "gpu" and len(value):
                earlier = (
                    [] if tally.reported_idle_power_w is None else [tally.reported_idle_power_w]
                )
                tally.reported_idle_power_w = latest_on_lowest_level([*earlier, *value.tolist()])
            continue
        signal = _signal(labels)
        key = GpuKey(instance, labels.get("uuid", "") or labels.get("device", ""))
        if signal and key in tallies:
            found[key][signal].append((t, value))
    for key, signals in found.items():
        one = {
            name: _merged(parts, highest=name == i.UTILIZATION) for name, parts in signals.items()
        }
        if grams_per_kwh is not None and len(one.get(i.ENERGY, ())):
            one[i.INTENSITY] = Samples(one[i.ENERGY].t, np.full(len(one[i.ENERGY]), grams_per_kwh))
        elif key.instance in carbon:
            one[i.INTENSITY] = carbon[key.instance]
        yield key, one


def _signal(labels: Mapping[str, str]) -> str:
    name = labels["__name__"]
    if name == m.GPU_CLOCK_EVENT_SECONDS.name:
        return f"{i.EVENT}{labels.get('reason', '')}"
    if name == m.RUN_ATTRIBUTED_ENERGY.name:
        return i.UNATTRIBUTED if labels.get("policy") == SHARE_POLICY else ""
    if name == m.GPU_POWER_LIMIT.name:
        return _LIMITS.get(labels.get("kind", ""), "")
    if name == m.GPU_UTILIZATION.name:
        return i.UTILIZATION if labels.get("engine") in _ENGINES else ""
    signal, label, text = _SIGNALS.get(name, ("", "", ""))
    return signal if not label or labels.get(label) == text else ""


def _merged(parts: Sequence[tuple[FloatArray, FloatArray]], *, highest: bool) -> Samples:
    """Return the samples of several series of one signal; the highest of each time for
    utilization.
    """
    if len(parts) == 1:
        return clean(*parts[0])
    t = np.concatenate([t for t, _ in parts])
    value = np.concatenate([value for _, value in parts])
    order = np.lexsort((-value if highest else value, t))
    return clean(t[order], value[order])


class _States:
    """Labels and spans of GPUs, runs and pods, from their series part by part in the order of
    time.
    """

    def __init__(self) -> None:
        self.gpus: dict[GpuKey, Mapping[str, str]] = {}
        self._run_labels: dict[_Run, tuple[tuple[str, str], ...]] = {}
        self._values: dict[tuple[str, _Run], float] = {}
        self._spans: dict[_Held, list[tuple[float, float]]] = {}
        self._newest_s: dict[_Target, float] = {}

    def add(self, part: Sequence[Series]) -> None:
        scrapes: defaultdict[_Target, list[FloatArray]] = defaultdict(list)
        for labels, t, _ in part:
            scrapes[_target(labels)].append(t)
        times = {target: distinct(np.concatenate(parts)) for target, parts in scrapes.items()}
        for labels, t, value in part:
            if len(t):
                self._add_series(labels, t, value, times[_target(labels)])
        self._newest_s |= {target: float(each[-1]) for target, each in times.items() if len(each)}

    def spans(self) -> dict[GpuKey, list[HeldSpan]]:
        """Return the spans in which runs and pods hold each GPU; a pod with a discovered run is
        only that run.
        """
        found: defaultdict[GpuKey, list[HeldSpan]] = defaultdict(list)
        for (target, uuid, kind, name), stretches in sorted(
            self._spans.items(), key=lambda item: item[0][2] == "pod"
        ):
            key = GpuKey(target[0], uuid)
            run = (target[0], name)
            if kind == "pod":
                if not any(_is_pod(span.holder, name) for span in found[key]):
                    holder = Holder("pod", name)
                    found[key] += [
                        HeldSpan(a, self._open_end(target, b), holder) for a, b in stretches
                    ]
                continue
            start_s = self._values.get((m.RUN_START.name, run), stretches[0][0])
            end_s = self._values.get(
                (m.RUN_END.name, run), self._open_end(target, stretches[-1][1])
            )
            found[key].append(
                HeldSpan(start_s, end_s, Holder("run", name, self._run_labels.get(run, ())))
            )
        return dict(found)

    def _open_end(self, target: _Target, end_s: float) -> float:
        """Return the end of a span, infinity if it goes on at the newest scrape."""
        return math.inf if end_s >= self._newest_s[target] - _SAME_S else end_s

    def _add_series(
        self, labels: Mapping[str, str], t: FloatArray, value: FloatArray, scrapes: FloatArray
    ) -> None:
        name = labels["__name__"]
        instance = labels.get("instance", "")
        run = instance, labels.get("run_id", "")
        if name == m.GPU_INFO.name:
            self.gpus[GpuKey(instance, labels.get("uuid", ""))] = labels
        elif name == m.RUN_INFO.name:
            kept = {
                key.removeprefix(_LABEL): text
                for key, text in labels.items()
                if key.startswith(_LABEL)
            }
            self._run_labels[run] = tuple(sorted(kept.items()))
        elif name in (m.RUN_START.name, m.RUN_END.name):
            self._values[name, run] = float(value[-1])
        else:
            pod = f"{labels.get('namespace', '')}/{labels.get('pod', '')}"
            who = ("run", run[1]) if name == m.RUN_GPU_INFO.name else ("pod", pod)
            self._extend((_target(labels), labels.get("uuid", ""), *who), t, scrapes)

    def _extend(self, held: _Held, t: FloatArray, scrapes: FloatArray) -> None:
        """Add the spans in which every scrape of the instance has the series."""
        at = np.searchsorted(scrapes, distinct(t))
        breaks = np.flatnonzero(np.diff(at) > 1)
        firsts = at[np.append(0, breaks + 1)]
        lasts = at[np.append(breaks, len(at) - 1)]
        known = self._spans.setdefault(held, [])
        for first, newest in zip(firsts.tolist(), lasts.tolist(), strict=True):
            start_s = float(scrapes[first])
            end_s = float(scrapes[newest])
            if (
                known
                and first == 0
                and known[-1][1] >= self._newest_s.get(held[0], math.inf) - _SAME_S
            ):
                start_s = known.pop()[0]
            known.append((start_s, end_s))


def _target(labels: Mapping[str, str]) -> _Target:
    return labels.get("instance", ""), labels.get("job", "")


def _is_pod(holder: Holder, name: str) -> bool:
    return f"{holder.label('namespace')}/{holder.label('pod')}" == name
