"""Synthetic hour with faults and known energy.

It has names with special characters of regular expressions, runs of five seconds, a run on two
nodes, failed runs, an exporter that restarts, a node that joins and a GPU that is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.analyzer.fleet_nodes import NodeSeries
from tests.grafana.cluster import BEGIN_S, JobRun, Nodes
from tests.grafana.cluster import series as hour
from wattline.contract import metrics as m

TROUBLE_S = BEGIN_S - 2 * 86_400
END_S = TROUBLE_S + 3_600
LLAMA, QWEN = "meta-llama/Llama-3.1-8B", "qwen|2 (awq)+"
STEADY = JobRun(
    "steady", "0", 600, 1_200, 300, {"generated_tokens": 10}, {"model": LLAMA}, hour_s=TROUBLE_S
)
SHORT_RUNS = tuple(
    JobRun(f"blink-{k}", "0", 2_404 + 60 * k, 5, 400, labels={"model": QWEN}, hour_s=TROUBLE_S)
    for k in range(5)
)
"""Runs that each fit between two scrapes."""
OPEN = JobRun("open", "0", 3_000, None, 200, hour_s=TROUBLE_S)
PAIR = {"model": "wide.model", "tenant": "pair", "mps": "off", "experiment": "pairs"}
WIDE = JobRun("wide", "1", 1_200, 900, 500, {"generated_tokens": 10}, PAIR, hour_s=TROUBLE_S)
WIDE_TOO = replace(WIDE, after_s=1_230, seconds=900, per_second={})
"""The same run on another node, which joins 30 s later and reports no tokens."""


def _capped(name: str, cap_w: int, after_s: float, watts: float, model: str = "tiny") -> JobRun:
    labels = {"experiment": "caps", "model": model, "power_limit_watts": str(cap_w)}
    phases = {"warmup": 10, "measure": 90}
    return JobRun(
        name,
        "0",
        after_s,
        100,
        watts,
        {"generated_tokens": 10},
        labels,
        "sweep",
        phases=phases,
        hour_s=TROUBLE_S,
    )


SWEEP_RUNS = (
    _capped("cap-good", 300, 0, 280),
    _capped("cap-big", 300, 150, 560, "big"),
    replace(
        _capped("cap-failed", 300, 300, 280), outcome="failed", phases={"warmup": 100, "measure": 0}
    ),
    replace(_capped("cap-broken-off", 400, 450, 390), outcome="interrupted", seconds=50),
    _capped("cap-high", 400, 600, 400),
    replace(_capped("cap-on", 300, 3_540, 280), seconds=None),
)
NODES: Nodes = {
    "gpu-1.example.com:9847": ({"cluster": "west.1"}, (STEADY, *SHORT_RUNS, OPEN, WIDE)),
    "gpu-1xexample.com:9847": ({"cluster": "west.1"}, (*SWEEP_RUNS, WIDE_TOO)),
    "gpu-3.example.com:9847": ({"cluster": "westx1"}, ()),
}
TWIN = "gpu-1.example.com:9847"
"""Address used by one node of each cluster."""
JOINED_S, LOST_S = 1_800, 3_000
"""Seconds after which the node in `westx1` joins with counters at 0, and after which its GPU 0 is
lost.
"""
AWAY_S = (3_200, 3_290)
"""Seconds between which the exporter with the open run restarts and has no samples."""
DRIVER_S = 2_000
"""Seconds after which the node of the sweep has a newer driver."""
SWEEP_GPU_LABELS = {"gpu": "0", "uuid": "GPU-00000000"}


def series() -> Iterator[NodeSeries]:
    for entry in hour(NODES, TROUBLE_S):
        match entry.labels["instance"]:
            case "gpu-3.example.com:9847":
                yield from _joining_node(entry)
            case "gpu-1.example.com:9847":
                yield from _with_restart(entry)
            case _:
                yield from _with_newer_driver(entry)
    yield from _clock_event_series()


def _cut(entry: NodeSeries, where: np.ndarray) -> Iterator[NodeSeries]:
    if where.any():
        yield NodeSeries(entry.labels, entry.t[where], entry.value[where])


def _joining_node(entry: NodeSeries) -> Iterator[NodeSeries]:
    name, t = entry.labels["__name__"], entry.t - TROUBLE_S
    if name == m.GPU_UP.name and entry.labels["gpu"] == "0":
        entry = replace(entry, value=np.where(t < LOST_S, 1.0, 0.0))
    elif name == m.EMISSIONS.name or (name.endswith("_total") and "_energy_" in name):
        entry = replace(entry, value=entry.value - np.interp(JOINED_S, t, entry.value))
    of_lost = (
        entry.labels.get("gpu", entry.labels.get("device")) in {"0", SWEEP_GPU_LABELS["uuid"]}
        and name != m.GPU_UP.name
    )
    present = (t >= JOINED_S) & (t < (LOST_S if of_lost else np.inf))
    yield from _cut(replace(entry, labels=entry.labels | {"instance": TWIN}), present)


def _with_restart(entry: NodeSeries) -> Iterator[NodeSeries]:
    t = entry.t - TROUBLE_S
    yield from _cut(entry, (t < AWAY_S[0]) | (t >= AWAY_S[1]))


def _with_newer_driver(entry: NodeSeries) -> Iterator[NodeSeries]:
    """Yield the series with the GPU name that the newer driver reports."""
    if entry.labels["__name__"] != m.GPU_INFO.name:
        yield entry
        return
    newer = {"driver_version": "570", "name": "NVIDIA H100 80GB HBM3"}
    yield from _cut(entry, entry.t < TROUBLE_S + DRIVER_S)
    yield from _cut(replace(entry, labels=entry.labels | newer), entry.t >= TROUBLE_S + DRIVER_S)


def _clock_event_series() -> Iterator[NodeSeries]:
    """Yield one reason active for half of 1,200 s to 1,560 s (180 s), and one that never
    applies.
    """
    t = np.round(np.arange(TROUBLE_S + 3.2, END_S + 60, 15), 3)
    active_s = np.clip(t - TROUBLE_S - 1_200, 0, 360) / 2
    labels = {
        "instance": "gpu-1xexample.com:9847",
        "job": "wattline",
        "cluster": "west.1",
        **SWEEP_GPU_LABELS,
    }
    for reason, seconds in (("hw_slowdown", active_s), ("sw_thermal_slowdown", 0 * active_s)):
        yield NodeSeries(
            {"__name__": m.GPU_CLOCK_EVENT_SECONDS.name, **labels, "reason": reason}, t, seconds
        )
