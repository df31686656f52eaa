"""Energy of GPUs on which several runs report requests, divided by the energy that is attributed to each run."""

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

_REPORTED_S = 15.0
"""Longest time from the instant at which a run's requests have a part of a GPU to the sample with that instant."""


class OwnEnergy(NamedTuple):
    """Joules of a run in K slots of a GPU, and its part of the GPU's idle power in each (K,)."""

    joules: FloatArray
    idle_ratio: FloatArray


@dataclass(frozen=True, slots=True)
class RunsOnGpu:
    """Run `run_id` and others that report requests on a GPU.

    `starts_s` are the instants from which they have a part of its energy, `used` the energies attributed to them.
    """

    run_id: str
    starts_s: Mapping[str, float]
    used: Mapping[str, Samples]

    def own_energy(self, meter: Samples, edges_s: FloatArray) -> OwnEnergy:
        """Return the part of the run in the energy of the meter; the parts of all runs add up to it.

        Runs whose requests have no part yet have one only while no other run has.
        """
        changes_s = np.concatenate([meter.t, list(self.starts_s.values())])
        between = (changes_s > edges_s[0]) & (changes_s < edges_s[-1])
        times_s = np.unique(np.concatenate([edges_s, changes_s[between]]))
        middles_s = (times_s[1:] + times_s[:-1]) / 2
        has_part = np.array(list(self.starts_s.values()))[:, np.newaxis] <= middles_s
        has_part |= ~has_part.any(axis=0)
        sample = np.clip(np.searchsorted(meter.t, middles_s, side="right") - 1, 0, len(meter.t) - 2)
        used_j = has_part * np.array([_increments(self.used[each], meter.t)[sample] for each in self.starts_s])
        total_j, is_known = used_j.sum(axis=0), used_j.any(axis=0)
        weights = np.where(is_known, used_j, has_part)
        own, holders = list(self.starts_s).index(self.run_id), (weights > 0.0).sum(axis=0)
        share = weights[own] / np.where(is_known, total_j, holders)
        idle_s = (weights[own] > 0.0) / holders * np.diff(times_s)
        slots = np.searchsorted(times_s, edges_s[:-1])
        joules = np.add.reduceat(share * np.diff(np.interp(times_s, meter.t, meter.value)), slots)
        return OwnEnergy(joules, np.add.reduceat(idle_s, slots) / np.diff(edges_s))


def _increments(used: Samples, times_s: FloatArray) -> FloatArray:
    """Return the energy between consecutive times."""
    if not len(used):
        return np.zeros(len(times_s) - 1)
    return np.maximum(np.diff(np.interp(times_s, used.t, used.value)), 0.0)


def fetch_runs_on_gpu(source: SampleSource, run_id: str, place: Place, span_s: TimeRange) -> RunsOnGpu | None:
    """Return the runs that report requests on a GPU, and `run_id`; None if there is no other one.

    A run whose requests were not reported to the exporter has a part from its start. Raises FetchError.
    """
    instance, uuid = place
    labels = {"component": "gpu", "device": uuid} | ({"instance": instance} if instance else {})
    start_s, end_s = span_s
    request = SeriesRequest((m.RUN_REQUESTS_START,), labels, (start_s, end_s + _REPORTED_S))
    found = rows_of(fetch_states(source, request), m.RUN_REQUESTS_START)
    firsts_s = {name: float(rows.value.min()) for (name,), rows in found.groups("run_id")}  # restarts move the instant
    starts_s = {run_id: firsts_s.get(run_id, -np.inf)} | {name: at for name, at in firsts_s.items() if at < end_s}
    if len(starts_s) == 1:
        return None
    used = {}
    for name in starts_s:
        own = {**labels, "run_id": name, "policy": SHARE_POLICY}
        table = fetch(source, SeriesRequest((m.RUN_ATTRIBUTED_ENERGY,), own, span_s))
        used[name] = samples(table, m.RUN_ATTRIBUTED_ENERGY)
    return RunsOnGpu(run_id, starts_s, used)
