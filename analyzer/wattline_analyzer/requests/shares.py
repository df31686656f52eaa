"""Energy of GPUs on which several runs report requests, divided as the exporter does, by the loads
at the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.work import SHARE_POLICY
from wattline_analyzer.core.device_counters import without_restarts
from wattline_analyzer.core.fetch import Place, SeriesRequest, TimeRange, fetch_states
from wattline_analyzer.core.sample_table import rows_of, samples
from wattline_analyzer.core.samples import FloatArray, Samples
from wattline_analyzer.core.sources.base import SampleSource
from wattline_exporter.requests.division.arrays import IntArray, Mask, amounts_at, quotient

_REPORTED_S = 15.0
"""Longest time from the instant at which a run's requests have a part of a GPU to the sample with
that instant.
"""
_NEAR_S = 2.0
"""Time before and after a run of which samples are fetched."""
_KNOWN_S = 6.0
"""Delay until the loads of an instant are known."""
_USUAL_S, _USUAL_FACTOR = 5.0, 1.5
"""Longest time between two readings of the loads without a restart of the exporter in it, and its
ratio to the median.

A restart takes longer: loads are known about 2 s later, and the first ones need two readings.
"""
_METER_RATIO, _METER_S = 0.1, 0.3
"""Largest difference of the energies of all runs from the meter without a restart: a ratio, and
seconds of power.
"""
_ATTRIBUTED_RATIO = 0.75
"""Least part of the meter's energy that must be attributed to the runs for the attribution to be
used.
"""
_NEAREST_S = 30.0
"""Largest distance of the reading whose loads are used otherwise, for example where the run of a
client has the server's processes.
"""
_ALWAYS_S = (-np.inf, np.inf)


class OwnEnergy(NamedTuple):
    """Joules of a run in K slots of a GPU and of the whole GPU, and the run's part of the idle
    power in each (K,).
    """

    joules: FloatArray
    whole_j: FloatArray
    idle_ratio: FloatArray


@dataclass(frozen=True, slots=True)
class RunUse:
    """Energy of a run that is open from `open_s[0]` to `open_s[1]`; its requests have a part of the
    GPU `from_s` on. `used` never falls.
    """

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
    """Run `run_id` and others that report requests on a GPU; `unattributed` is the energy of no
    run.
    """

    run_id: str
    uses: Mapping[str, RunUse]
    unattributed: Samples
    attributed: frozenset[str] = frozenset()
    """Runs without energies by load, whose attributed energies are used."""

    def own_energy(self, meter: Samples, edges_s: FloatArray) -> OwnEnergy:
        """Return the part of the run in the energy of the meter; the parts of all open runs add up
        to it.

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
        joules = _spread(
            np.diff(meter.value), (power_w.sum(axis=0) + rest_w) * seconds, seconds, sample
        )
        weights = has_part * power_w
        weights = np.where(weights.any(axis=0), weights, has_part)
        own, holders = (
            weights[list(self.uses).index(self.run_id)],
            np.maximum((weights > 0.0).sum(axis=0), 1),
        )
        own_j = quotient(own, weights.sum(axis=0)) * joules
        idle_s = (own > 0.0) / holders * seconds
        slots = np.searchsorted(edges_s, middles_s)  # 0 and K + 1 are outside
        own_j, whole_j, idle_s = (
            amounts_at(slots, one, len(edges_s) + 1)[1:-1] for one in (own_j, joules, idle_s)
        )
        return OwnEnergy(own_j, whole_j, idle_s / np.diff(edges_s))


def _spread(
    joules: FloatArray, weights: FloatArray, seconds: FloatArray, sample: IntArray
) -> FloatArray:
    """Divide energies (S,) among the parts of their times by weight, or by seconds where all
    weights are 0.
    """
    total, total_s = (amounts_at(sample, each, len(joules))[sample] for each in (weights, seconds))
    share = np.where(total > 0.0, quotient(weights, total), seconds / total_s)
    spread: FloatArray = share * joules[sample]
    return spread


def fetch_runs_on_gpu(
    source: SampleSource,
    run_id: str,
    span_s: TimeRange,
    open_s: Mapping[Place, TimeRange],
    place: Place,
) -> RunsOnGpu | None:
    """Return the runs that report requests on a GPU, and `run_id`; None if there is no other one in
    the time.

    `open_s` has the times of runs by instance and run; those before and after the time have no
    part. A run whose requests were not reported to the exporter has a part from its start. Raises
    FetchError.
    """
    instance, uuid = place
    labels = {"component": "gpu", "device": uuid} | ({"instance": instance} if instance else {})
    request = SeriesRequest((m.RUN_REQUESTS_START,), labels, span_s[0], span_s[1] + _REPORTED_S)
    found = rows_of(fetch_states(source, request), m.RUN_REQUESTS_START)
    firsts_s = {
        name: float(rows.value.min()) for (name,), rows in found.groups("run_id")
    }  # restarts move the instant
    begins_s, ends_s = (
        {name: open_s.get((instance, name), _ALWAYS_S)[k] for name in firsts_s} for k in (0, 1)
    )
    froms_s = {run_id: firsts_s.get(run_id, -np.inf)} | {
        name: at
        for name, at in firsts_s.items()
        if max(at, begins_s[name]) < span_s[1] and ends_s[name] > span_s[0]
    }
    if len(froms_s) == 1:
        return None

    near_s, known_s = (
        (span_s[0] - _NEAR_S, span_s[1] + _NEAR_S),
        (span_s[0] - _NEAR_S, span_s[1] + _KNOWN_S),
    )
    of_loads = source.fetch((m.RUN_LOAD_ENERGY, m.RUN_LOAD_TIMESTAMP), labels, *known_s)
    rows = rows_of(of_loads, m.RUN_LOAD_ENERGY)
    by_load = {name: samples(one, m.RUN_LOAD_ENERGY) for (name,), one in rows.groups("run_id")}
    attributed = {}
    for name in [*froms_s, ""]:
        own = {**labels, "run_id": name, "policy": SHARE_POLICY}
        of_run = source.fetch((m.RUN_ATTRIBUTED_ENERGY,), own, *near_s)
        attributed[name] = samples(of_run, m.RUN_ATTRIBUTED_ENERGY)
    of_gpu = {"uuid": uuid} | ({"instance": instance} if instance else {})
    meter = samples(source.fetch((m.GPU_ENERGY,), of_gpu, *known_s), m.GPU_ENERGY)
    used = by_loads(attributed, by_load, samples(of_loads, m.RUN_LOAD_TIMESTAMP), meter)
    uses = {
        name: RunUse(at, open_s.get((instance, name), _ALWAYS_S), used[name])
        for name, at in froms_s.items()
    }
    return RunsOnGpu(run_id, uses, used[""], frozenset(froms_s.keys() - by_load.keys()))


def by_loads(
    attributed: Mapping[str, Samples],
    by_load: Mapping[str, Samples],
    read_at: Samples,
    meter: Samples,
) -> Mapping[str, Samples]:
    """Return the energies of runs by the loads at the time, and as attributed where these are not
    known.

    `by_load` has the energies of all runs on the GPU, which begin at 0 with the run and with a
    restart of the exporter, and `read_at` the times up to which they are known, in the same
    samples. Attribution has the loads before. `attributed` and `meter` are counters, which may
    restart.
    """
    attributed = {name: without_restarts(one) for name, one in attributed.items()}
    meter = without_restarts(meter)
    at_s, first = np.unique(read_at.value, return_index=True)
    readings = {name: _at_readings(one, read_at.t[first], at_s) for name, one in by_load.items()}
    if len(at_s) < 2 or not readings:
        return attributed
    is_known = _known_readings(at_s, np.array(list(readings.values())), meter)
    with_ends = np.concatenate([[False], is_known, [False]])
    unknown_s = [one.t[~with_ends[np.searchsorted(at_s, one.t)]] for one in attributed.values()]
    times_s = np.unique(np.concatenate([at_s, *unknown_s]))
    middles_s, seconds = (times_s[1:] + times_s[:-1]) / 2, np.diff(times_s)
    steps_j = {name: _steps(one, times_s) for name, one in attributed.items()}
    is_by_load = with_ends[np.searchsorted(at_s, middles_s)]
    reading = np.clip(np.searchsorted(at_s, middles_s) - 1, 0, len(is_known) - 1)
    if is_known.any():
        nearest, away_s = _nearest((at_s[1:] + at_s[:-1])[is_known] / 2, middles_s)
        stretch = np.cumsum(np.append(False, np.diff(is_by_load)))
        sums_j = np.sum(list(steps_j.values()), axis=0), _steps(meter, times_s)
        attributed_j, metered_j = (np.bincount(stretch, each)[stretch] for each in sums_j)
        is_near = (
            ~is_by_load & (attributed_j < _ATTRIBUTED_RATIO * metered_j) & (away_s < _NEAREST_S)
        )
        reading[is_near] = np.flatnonzero(is_known)[nearest[is_near]]
        is_by_load |= is_near
    found = {}
    for name in attributed.keys() & readings.keys():
        power_w = np.diff(readings[name]) / np.diff(at_s)
        joules = np.where(is_by_load, power_w[reading] * seconds, steps_j[name])
        found[name] = Samples(times_s, np.append(0.0, np.cumsum(joules)))
    return {**attributed, **found}


def _at_readings(by_load: Samples, read_s: FloatArray, at_s: FloatArray) -> FloatArray:
    """Return the energy of a run at each reading (R,): 0 before its first one, and the same after
    its last one.
    """
    _, own, reading = np.intersect1d(by_load.t, read_s, return_indices=True)
    return (
        np.interp(at_s, at_s[reading], by_load.value[own], left=0.0)
        if len(own)
        else np.zeros(len(at_s))
    )


def _known_readings(at_s: FloatArray, joules: FloatArray, meter: Samples) -> Mask:
    """Return between which readings the energies of all runs (runs, R) are known, (R - 1,).

    Energies begin again with a restart of the exporter, and may soon exceed those before it, but
    their sum lacks some of the meter's energy then.
    """
    seconds, steps_j, metered_j = np.diff(at_s), np.diff(joules, axis=1), _steps(meter, at_s)
    is_usual = seconds <= min(_USUAL_S, _USUAL_FACTOR * float(np.median(seconds)))
    slack_j = _METER_RATIO * metered_j + _METER_S * _largest_around(quotient(metered_j, seconds))
    is_whole = np.abs(steps_j.sum(axis=0) - metered_j) <= slack_j
    known: Mask = (is_usual | is_whole) & (steps_j >= 0.0).all(axis=0)
    return known


def _largest_around(values: FloatArray) -> FloatArray:
    """Return the largest one of each value and those next to it."""
    padded = np.pad(values, 1)
    return np.maximum(values, np.maximum(padded[:-2], padded[2:]))


def _steps(one: Samples, times_s: FloatArray) -> FloatArray:
    """Return the energy between consecutive times, 0 before the first sample and after the last
    one. The samples never fall; only rounding of the interpolation may be below 0.
    """
    if not len(one):
        return np.zeros(len(times_s) - 1)
    return np.maximum(np.diff(np.interp(times_s, one.t, one.value)), 0.0)


def _nearest(known_s: FloatArray, times_s: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the positions of the nearest ones of some times in rising order, and the seconds to
    them.
    """
    after = np.searchsorted(known_s, times_s).clip(1, max(1, len(known_s) - 1))
    before = after - 1
    after = np.minimum(after, len(known_s) - 1)
    is_before = np.abs(times_s - known_s[before]) <= np.abs(known_s[after] - times_s)
    nearest: IntArray = np.where(is_before, before, after)
    return nearest, np.abs(times_s - known_s[nearest])
