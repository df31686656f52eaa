"""Counters by owner of nodes whose energy and runs are known in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from tests.analyzer.fleet_nodes import (
    BUSY_W,
    CPU_W,
    DRAM_W,
    IDLE_W,
    KWH_J,
    DeviceEnergy,
    FleetNode,
    FleetRun,
    NodeSeries,
)
from wattline.contract import metrics as m
from wattline.contract.metrics import Metric

NEW_OWNER_S = 65.0
"""Time for which an exporter shows a new owner's counters at 0."""


def owner_series(node: FleetNode, runs: Iterable[FleetRun]) -> Iterator[NodeSeries]:
    """Return the counters by owner of a node: the label `user` of its runs, else `namespace`."""
    t, own_runs = node.times(), [run for run in runs if node.instance in run.instances]
    devices = [
        ("gpu", [run for run in own_runs if gpu in run.gpus], IDLE_W, BUSY_W)
        for gpu in range(node.gpus)
    ]
    devices += [("cpu", own_runs, CPU_W, CPU_W), ("dram", own_runs, DRAM_W, DRAM_W)]
    sums: dict[tuple[Metric, tuple[tuple[str, str], ...]], np.ndarray] = {}

    def add(
        metric: Metric,
        owner: tuple[str, str, str, str],
        labels: Mapping[str, str],
        values: np.ndarray,
    ) -> None:
        named = dict(zip(m.OWNER_ENERGY.labels[:4], owner, strict=True)) | labels
        key = metric, tuple(named.items())
        sums[key] = sums.get(key, 0.0) + values

    for component, held, idle_w, busy_w in devices:
        energy, time = DeviceEnergy(node, held, idle_w, busy_w), DeviceEnergy(node, held, 1.0, 1.0)
        for owner, joules in _by_owner(energy, t).items():
            for policy in ("idle_shared", "idle_apart"):
                add(m.OWNER_ENERGY, owner, {"component": component, "policy": policy}, joules)
            if node.grams_per_kwh is not None:
                labels = {"component": component, "basis": "average", "quality": "actual"}
                add(m.OWNER_EMISSIONS, owner, labels, joules * node.grams_per_kwh / KWH_J)
        for owner, seconds in _by_owner(time, t).items() if component == "gpu" else ():
            add(m.OWNER_GPU_SECONDS, owner, {}, seconds)
    for (metric, named), values in sums.items():
        shown = values > 0
        begin_s = t[shown][0] if shown.any() else np.inf
        counted = np.where(t < begin_s + NEW_OWNER_S, 0.0, values) if begin_s > t[0] else values
        name = {"__name__": metric.name, "instance": node.instance, "job": "wattline"}
        yield NodeSeries(
            {**name, **dict(named)}, t[t >= begin_s], np.round(counted[t >= begin_s], 6)
        )


def _by_owner(device: DeviceEnergy, t: np.ndarray) -> dict[tuple[str, str, str, str], np.ndarray]:
    found = {("none", "", "", ""): device.total_j(t)}
    for run in device.runs:
        named = run.labels.get("user") or run.labels.get("namespace", "")
        owner = (
            run.labels.get("discovered", "run"),
            named,
            run.labels.get("account", ""),
            run.workload,
        )
        share = device.booked_j(run, t)
        found[owner] = found.get(owner, 0.0) + share
        found["none", "", "", ""] = found["none", "", "", ""] - share
    return found
