"""Energy of GPUs between two samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.run import RunDevice
from wattline.contract.work import SHARE_POLICY
from wattline_analyzer.core.device_counters import without_restarts
from wattline_analyzer.core.fetch import Place, SeriesRequest, TimeRange, fetch_states
from wattline_analyzer.core.integrate import ANY_POWER, unwrap
from wattline_analyzer.core.sample_table import last, rows_of, samples
from wattline_analyzer.core.samples import GAP_FACTOR, FloatArray, Samples
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_exporter.requests.division.spans import EnergySlots

MAX_SLOT_S = 2.0
"""Widest slot: the intervals of the division were checked with updates of 0.1 to 1 s."""
SENSOR_AGE_S = 0.1
"""Longest usual age of a sample: counters are updated every 20 to 100 ms."""
_LOW_PERCENTILE = 1.0
_NOT_RECORDED: Mapping[Place, RunDevice] = MappingProxyType({})
_REPORTED_S = 15.0
"""Longest time from the instant at which a run's requests have a part of a GPU to the sample with
that instant.
"""


class RunGpus(NamedTuple):
    """GPUs of a run, with the other runs that report requests on each of them."""

    run_id: str
    others: Mapping[Place, frozenset[str]]

    @classmethod
    def alone(cls, places: Iterable[Place]) -> RunGpus:
        """Return GPUs of a time range, of which all energy counts."""
        return cls("", dict.fromkeys(places, frozenset()))

    @property
    def is_shared(self) -> bool:
        return any(self.others.values())


def sharing_runs(
    source: SampleSource,
    run_id: str,
    span_s: TimeRange,
    open_s: Mapping[Place, TimeRange],
    place: Place,
) -> frozenset[str]:
    """Return the other runs that report requests on a GPU in a time range.

    `open_s` has the times of runs by instance and run. Raises FetchError.
    """
    instance, uuid = place
    labels = {"component": "gpu", "device": uuid} | ({"instance": instance} if instance else {})
    request = SeriesRequest((m.RUN_REQUESTS_START,), labels, span_s[0], span_s[1] + _REPORTED_S)
    found = rows_of(fetch_states(source, request), m.RUN_REQUESTS_START)
    always_s = (-np.inf, np.inf)
    names = set()
    for (name,), rows in found.groups("run_id"):
        begin_s, end_s = open_s.get((instance, name), always_s)
        from_s = max(float(rows.value.min()), begin_s)  # restarts move the instant
        if from_s < span_s[1] and end_s > span_s[0]:
            names.add(name)
    return frozenset(names - {run_id})


@dataclass(frozen=True, slots=True)
class SampledGpuEnergy:
    """Energy of GPUs between samples, or a run's part; `idle_w` has the power of those whose idle
    power is known, and of which the run has all.
    """

    edges_s: FloatArray
    joules: FloatArray
    sampled_j: float
    """Energy of the whole GPUs by the samples."""
    gaps_s: FloatArray
    """Begin and end of each gap, (G, 2)."""
    gpus: int
    idle_w: tuple[FloatArray, ...]


def sampled_energy(
    source: SampleSource,
    gpus: RunGpus,
    span_s: TimeRange,
    *,
    known: Mapping[Place, RunDevice] = _NOT_RECORDED,
    within_s: TimeRange | None = None,
) -> SampledGpuEnergy:
    """Return the energy of GPUs, scaled to the `known` energies of a run, of shared ones the energy
    that is attributed to the run.

    With `within_s`, the time around this range counts as far as there are samples.
    """
    start_s, end_s = span_s
    counters: dict[Place, Samples] = {}
    idle_of: dict[Place, float] = {}
    for instance in sorted({instance for instance, _ in gpus.others}):
        where = {"instance": instance} if instance else {}
        metrics = m.GPU_ENERGY, m.IDLE_POWER
        raw = source.fetch(metrics, where, start_s - MAX_SLOT_S, end_s + MAX_SLOT_S)
        for place in sorted(place for place in gpus.others if place[0] == instance):
            counter = samples(raw, m.GPU_ENERGY, uuid=place[1], **where)
            counters[place] = unwrap(counter, ANY_POWER).samples
            for row in last(raw, m.IDLE_POWER, component="gpu", device=place[1], **where):
                idle_of[place] = row.value
    if within_s is not None and all(map(len, counters.values())):
        start_s = min(within_s[0], max(start_s, *(float(one.t[0]) for one in counters.values())))
        end_s = max(within_s[1], min(end_s, *(float(one.t[-1]) for one in counters.values())))
    edges_s, gaps_s = _edges(list(counters.values()), start_s, end_s)
    joules = np.zeros(len(edges_s) - 1)
    idle_w = []
    sampled_j = 0.0
    for place, counter in counters.items():
        all_j = np.diff(np.interp(edges_s, counter.t, counter.value))
        sampled_j += float(all_j.sum())
        if gpus.others[place]:
            joules += _attributed_j(source, gpus.run_id, place, edges_s)
            continue
        one = known.get(place)
        joules += all_j if one is None else _with_total(all_j, one.energy_j.number)
        if place in idle_of:
            idle_w.append(np.full(len(all_j), idle_of[place]))
    return SampledGpuEnergy(edges_s, joules, sampled_j, gaps_s, len(gpus.others), tuple(idle_w))


def _attributed_j(
    source: SampleSource, run_id: str, place: Place, edges_s: FloatArray
) -> FloatArray:
    """Return the energy of a GPU that is attributed to a run in K slots, (K,); 0 before the run."""
    labels = {"component": "gpu", "device": place[1], "run_id": run_id, "policy": SHARE_POLICY}
    labels |= {"instance": place[0]} if place[0] else {}
    near_s = float(edges_s[0]) - MAX_SLOT_S, float(edges_s[-1]) + MAX_SLOT_S
    found = source.fetch((m.RUN_ATTRIBUTED_ENERGY,), labels, *near_s)
    counter = without_restarts(samples(found, m.RUN_ATTRIBUTED_ENERGY))
    if not len(counter):
        return np.zeros(len(edges_s) - 1)
    times_s = counter.t
    values_j = counter.value
    if times_s[0] > edges_s[0]:  # the counter began at 0 with the run
        times_s = np.append(edges_s[0], times_s)
        values_j = np.append(0.0, values_j)
    attributed: FloatArray = np.diff(np.interp(edges_s, times_s, values_j))
    return attributed


def energy_slots(measured: SampledGpuEnergy, notes: list[str]) -> EnergySlots:
    """Return the slots with the idle power, and add a note if it is assumed."""
    idle_w: float | FloatArray = np.sum(measured.idle_w, axis=0)
    if len(measured.idle_w) < measured.gpus:
        idle_w = float(np.percentile(measured.joules / np.diff(measured.edges_s), _LOW_PERCENTILE))
        notes.append(
            f"idle power unknown: {idle_w:.0f} W are assumed, the lowest of the time; the "
            "half-widths include this "
            "energy, and the energies of prefill and decode are not stated"
        )
    is_known = len(measured.idle_w) == measured.gpus
    return EnergySlots.of_samples(
        measured.edges_s, measured.joules, idle_w, SENSOR_AGE_S, idle_known=is_known
    )


def _edges(
    counters: Sequence[Samples], start_s: float, end_s: float
) -> tuple[FloatArray, FloatArray]:
    """Return the edges of the slots, and begin and end of each gap."""
    if any(len(one) < 2 for one in counters):
        raise FetchError(
            "a GPU of the server has no energy samples at this source",
            "use the source that measured the run",
        )
    times = counters[0].t
    edges_s = np.concatenate([[start_s], times[(times > start_s) & (times < end_s)], [end_s]])
    edges_s = edges_s[np.append(True, np.diff(edges_s) > 1e-6)]
    usual_s = float(np.median(np.diff(times)))
    if usual_s > MAX_SLOT_S:
        raise FetchError(
            f"samples are {usual_s:.3g} s apart, requests need {MAX_SLOT_S:g} s or less",
            "give --source the exporter or its history file",
        )
    is_gap = np.diff(edges_s) > GAP_FACTOR * usual_s
    return edges_s, np.stack([edges_s[:-1], edges_s[1:]], axis=1)[is_gap]


def _with_total(joules: FloatArray, total_j: float) -> FloatArray:
    """Return the energies with the total of the run.

    A sample has the counter's last update. Between samples this averages out; at the start and the
    end of the run it does not, and the ledger of the run knows the energies at both.
    """
    half_j = (joules.sum() - total_j) / 2
    if min(joules[0], joules[-1]) > half_j:
        joules = joules.copy()
        joules[[0, -1]] -= half_j
    scaled: FloatArray = joules * (total_j / joules.sum())
    return scaled
