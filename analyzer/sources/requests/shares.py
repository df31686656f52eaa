"""Energy of GPUs on which several runs report requests, divided as the exporter does, by the loads at the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analyzer.model.sample_table import rows_of, samples
from analyzer.model.samples import FloatArray, Samples
from analyzer.sources.base import SampleSource
from analyzer.sources.fetch import Place, SeriesRequest, TimeRange, fetch, fetch_states
from exporter.contract import metrics as m
from exporter.contract.work import SHARE_POLICY
from exporter.request_energy.load import quotient
from exporter.request_energy.pieces import IntArray, amounts_at

_REPORTED_S = 15.0
"""Longest time from the instant at which a run's requests have a part of a GPU to the sample with that instant."""
_NEAR_S, _KNOWN_S = 2.0, 6.0
"""Time before and after a run of which samples are fetched, and after which the loads at an instant are known."""
_UNKNOWN_S, _UNKNOWN_FACTOR = 5.0, 1.5
"""Time without a reading of the loads from which on they are unknown, and its ratio to the usual time between two.

A restart of the exporter takes longer: loads are known about 2 s later, and the first ones need two readings.
"""
_ALWAYS_S = (-np.inf, np.inf)


class OwnEnergy(NamedTuple):
    """Joules of a run in K slots of a GPU and of the whole GPU, and the run's part of the idle power in each (K,)."""

    joules: FloatArray
    whole_j: FloatArray
    idle_ratio: FloatArray


@dataclass(frozen=True, slots=True)
class RunUse:
    """Energy of a run that is open from `open_s[0]` to `open_s[1]`; its requests have a part of the GPU `from_s` on."""

    from_s: float
    open_s: TimeRange
    used: Samples

    def powers(self, times_s: FloatArray) -> FloatArray:
        """Return the mean power between consecutive times while the run is open."""
        if not len(self.used):
            return np.zeros(len(times_s) - 1)
        begin_s, end_s = self.open_s
        before_j = 0.0 if begin_s > times_s[0] else None
        joules = np.diff(np.interp(times_s, self.used.t, self.used.value, left=before_j))
        seconds = np.minimum(times_s[1:], end_s) - np.maximum(times_s[:-1], begin_s)
        return quotient(np.maximum(joules, 0.0), seconds)


@dataclass(frozen=True, slots=True)
class RunsOnGpu:
    """Run `run_id` and others that report requests on a GPU; `unattributed` is the energy of no run."""

    run_id: str
    uses: Mapping[str, RunUse]
    unattributed: Samples
    attributed: frozenset[str] = frozenset()
    """Runs without energies by load, whose attributed energies are used."""

    def own_energy(self, meter: Samples, edges_s: FloatArray) -> OwnEnergy:
        """Return the part of the run in the energy of the meter; the parts of all open runs add up to it.

        Open runs whose requests have no part yet have one only while no other run has.
        """
        uses = list(self.uses.values())
        begins_s, ends_s, froms_s = np.array([(*each.open_s, each.from_s) for each in uses]).T
        changes_s = np.concatenate([edges_s, begins_s, ends_s, froms_s])
        inside = (changes_s > meter.t[0]) & (changes_s < meter.t[-1])
        times_s = np.unique(np.concatenate([meter.t, changes_s[inside]]))
        middles_s, seconds = (times_s[1:] + times_s[:-1]) / 2, np.diff(times_s)
        is_open = (begins_s[:, np.newaxis] <= middles_s) & (ends_s[:, np.newaxis] > middles_s)
        has_part = is_open & (froms_s[:, np.newaxis] <= middles_s)
        has_part = np.where(has_part.any(axis=0), has_part, is_open)
        sample = np.searchsorted(meter.t, middles_s) - 1
        power_w = is_open * np.array([each.powers(meter.t)[sample] for each in uses])
        rest_w = RunUse(np.inf, _ALWAYS_S, self.unattributed).powers(meter.t)[sample]
        joules = _spread(np.diff(meter.value), (power_w.sum(axis=0) + rest_w) * seconds, seconds, sample)
        weights = has_part * power_w
        weights = np.where(weights.any(axis=0), weights, has_part)
        own, holders = weights[list(self.uses).index(self.run_id)], np.maximum((weights > 0.0).sum(axis=0), 1)
        own_j = quotient(own, weights.sum(axis=0)) * joules
        idle_s = (own > 0.0) / holders * seconds
        slots = np.searchsorted(edges_s, middles_s)  # 0 and K + 1 are outside
        own_j, whole_j, idle_s = (amounts_at(slots, one, len(edges_s) + 1)[1:-1] for one in (own_j, joules, idle_s))
        return OwnEnergy(own_j, whole_j, idle_s / np.diff(edges_s))


def _spread(joules: FloatArray, weights: FloatArray, seconds: FloatArray, sample: IntArray) -> FloatArray:
    """Divide energies (S,) among the parts of their times by weight, or by seconds where all weights are 0."""
    total, total_s = (amounts_at(sample, each, len(joules))[sample] for each in (weights, seconds))
    share = np.where(total > 0.0, quotient(weights, total), seconds / total_s)
    spread: FloatArray = share * joules[sample]
    return spread


def fetch_runs_on_gpu(
    source: SampleSource, run_id: str, span_s: TimeRange, open_s: Mapping[Place, TimeRange], place: Place
) -> RunsOnGpu | None:
    """Return the runs that report requests on a GPU, and `run_id`; None if there is no other one in the time.

    `open_s` has the times of runs by instance and run; those before and after the time have no part. A run whose
    requests were not reported to the exporter has a part from its start. Raises FetchError.
    """
    instance, uuid = place
    labels = {"component": "gpu", "device": uuid} | ({"instance": instance} if instance else {})
    request = SeriesRequest((m.RUN_REQUESTS_START,), labels, (span_s[0], span_s[1] + _REPORTED_S))
    found = rows_of(fetch_states(source, request), m.RUN_REQUESTS_START)
    firsts_s = {name: float(rows.value.min()) for (name,), rows in found.groups("run_id")}  # restarts move the instant
    begins_s, ends_s = ({name: open_s.get((instance, name), _ALWAYS_S)[k] for name in firsts_s} for k in (0, 1))
    froms_s = {run_id: firsts_s.get(run_id, -np.inf)} | {
        name: at for name, at in firsts_s.items() if max(at, begins_s[name]) < span_s[1] and ends_s[name] > span_s[0]
    }
    if len(froms_s) == 1:
        return None

    attributed: set[str] = set()

    def used(name: str) -> Samples:
        own, near_s = {**labels, "run_id": name}, (span_s[0] - _NEAR_S, span_s[1] + _NEAR_S)
        request = SeriesRequest((m.RUN_ATTRIBUTED_ENERGY,), {**own, "policy": SHARE_POLICY}, near_s)
        known_s = near_s[0], span_s[1] + _KNOWN_S
        by_load = samples(fetch(source, SeriesRequest((m.RUN_LOAD_ENERGY,), own, known_s)), m.RUN_LOAD_ENERGY)
        if len(by_load) < 2:
            attributed.add(name)
        return by_loads(samples(fetch(source, request), m.RUN_ATTRIBUTED_ENERGY), by_load, read_at)

    times = SeriesRequest((m.RUN_LOAD_TIMESTAMP,), labels, (span_s[0] - _NEAR_S, span_s[1] + _KNOWN_S))
    read_at = samples(fetch(source, times), m.RUN_LOAD_TIMESTAMP)
    uses = {name: RunUse(at, open_s.get((instance, name), _ALWAYS_S), used(name)) for name, at in froms_s.items()}
    by_attribution = frozenset(attributed)  # not of the energy of no run, which may be none
    return RunsOnGpu(run_id, uses, used(""), by_attribution)


def by_loads(attributed: Samples, by_load: Samples, read_at: Samples) -> Samples:
    """Return the energy of a run by the loads at the time, and as attributed where these are not known.

    `read_at` has the times up to which the energies `by_load` are known, in the same samples. Attribution has the loads
    before. Energies by load begin again with a restart of the exporter, and may soon exceed those before it: a longer
    time than usual between two readings may have one.
    """
    _, of_load, of_time = np.intersect1d(by_load.t, read_at.t, return_indices=True)
    at_s, first = np.unique(read_at.value[of_time], return_index=True)
    joules = by_load.value[of_load[first]]
    if len(at_s) < 2 or not len(attributed):
        return attributed
    seconds = np.diff(at_s)
    is_known = (seconds <= min(_UNKNOWN_S, _UNKNOWN_FACTOR * float(np.median(seconds)))) & (np.diff(joules) >= 0.0)
    before = attributed.t < at_s[0]
    after = attributed.t > at_s[-1]
    gaps = np.searchsorted(at_s, attributed.t) - 1
    inside = ~before & ~after & ~is_known[np.clip(gaps, 0, len(is_known) - 1)]
    times = np.unique(np.concatenate([at_s, attributed.t[before | after | inside]]))
    steps_j = np.diff(np.interp(times, attributed.t, attributed.value))
    middles_s = (times[1:] + times[:-1]) / 2
    slot = np.searchsorted(at_s, middles_s) - 1
    own = (slot >= 0) & (slot < len(is_known))
    own[own] = is_known[slot[own]]
    steps_j[own] = np.diff(joules)[slot[own]]
    return Samples(times, np.append(0.0, np.cumsum(np.maximum(steps_j, 0.0))))
