"""Two hours of six nodes whose energy is known in closed form.

Nodes `n1` and `n2` are first scraped in the window, while runs are open; the counters of `r`
restart; the exporter of `m` gets another address during a run. Runs on two nodes, runs that share a
GPU, and a run of 6 s between two scrapes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from tests.analyzer.fleet_nodes import (
    BUSY_W,
    CPU_W,
    DRAM_W,
    IDLE_W,
    DeviceEnergy,
    FleetNode,
    FleetRun,
    NodeSeries,
    node_series,
)
from tests.analyzer.fleet_owners import owner_series

BEGIN_S = 1_789_034_400.0
END_S = BEGIN_S + 7_200
MOVED_S = BEGIN_S + 3_000
OLD, NEW = "m-old:9847", "m-new:9847"
_DAY_S = 86_400.0
_KNOWN = {"up_s": BEGIN_S - 4_200, "down_s": END_S + 600, "gpus": 4}
NODES = (
    FleetNode("a:9847", BEGIN_S - _DAY_S, **_KNOWN, offset_s=3.2, grams_per_kwh=200.0),
    FleetNode("b:9847", BEGIN_S - _DAY_S, **_KNOWN, offset_s=7.7),
    FleetNode("n1:9847", BEGIN_S + 1_200, BEGIN_S + 1_800, END_S + 600, 4, offset_s=1.1),
    FleetNode("n2:9847", BEGIN_S - 40_000, BEGIN_S + 1_800, END_S + 600, 4, offset_s=5.4),
    FleetNode("r:9847", BEGIN_S - _DAY_S, **_KNOWN, offset_s=11.4, fresh_s=BEGIN_S + 3_600),
    FleetNode(NEW, BEGIN_S - _DAY_S, **_KNOWN, offset_s=9.3),
)
LOST_S = 3.6
"""Time between the last scrape of node r before its restart, and the restart."""


def _run(name, nodes, gpus, span_s, owner, *, phases=None):
    start_s, end_s = span_s
    user, model = owner.split()
    labels = {"user": user, "model": model}
    tokens = {"generated_tokens": 100.0}
    instances = tuple(f"{node}:9847" for node in nodes)
    return FleetRun(
        name,
        instances,
        gpus,
        BEGIN_S + start_s,
        BEGIN_S + end_s,
        labels,
        "serve",
        tokens,
        phases or {},
    )


RUNS = (
    _run("r1", "a", (0, 1), (-3_600, 4_200), "ann m1"),
    _run("r2", "ab", (2,), (1_000, 4_000), "bob m2"),
    _run("r3", "b", (0,), (500, 2_500), "cat m1"),
    _run("r4", "b", (0,), (1_500, 3_500), "dan m2"),
    _run("p1", ("n1",), (0, 1), (1_300, 5_000), "ann m1"),
    _run("p2", ("n1",), (2,), (1_400, 2_000), "eve m3"),
    _run("p3", ("n1",), (3,), (2_500, 5_000), "fay m3"),
    _run("p4", ("n2",), (0,), (-20_000, 3_000), "eve m1"),
    _run("p5", ("n2",), (1, 2), (1_000, 6_000), "gus m2"),
    _run("q1", "r", (0,), (2_000, 5_000), "hal m1"),
    _run("q2", "r", (1,), (4_000, 4_006), "hal m4"),
    _run("ph", "ab", (3,), (1_000, 3_000), "ida m5", phases={"work": (500, 2_000)}),
    _run("mv", ("m-new",), (0,), (2_000, 4_000), "joe m6"),
)


def known_series() -> list[NodeSeries]:
    """Return the series of all nodes; those of node m are at the old address until MOVED_S."""
    found = []
    for node in NODES:
        for one in (*node_series(node, RUNS), *owner_series(node, RUNS)):
            found += _moved(one) if node.instance == NEW else [one]
    return [one for one in found if len(one.t)]


def _moved(one: NodeSeries) -> list[NodeSeries]:
    is_old = one.t < MOVED_S
    return [
        NodeSeries({**one.labels, "instance": address}, one.t[chosen], one.value[chosen])
        for address, chosen in ((OLD, is_old), (NEW, ~is_old))
    ]


def true_energies(start_s: float, end_s: float, key: str) -> dict[str, float]:
    """Return the joules of all runs by a label, between the last scrapes of each node up to the
    edges, or from its first one on. The total has no label.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for node in NODES:
        t = node.times()
        t = t[t <= end_s]
        first_s = t[t <= start_s][-1] if (t <= start_s).any() else t[0]
        edges = np.array([first_s, t[-1]])
        own = [run for run in RUNS if node.instance in run.instances]
        counting = replace(node, fresh_s=None)
        devices = [
            DeviceEnergy(counting, [run for run in own if gpu in run.gpus], IDLE_W, BUSY_W)
            for gpu in range(node.gpus)
        ]
        devices += [DeviceEnergy(counting, own, watts, watts) for watts in (CPU_W, DRAM_W)]
        for device in devices:
            found[""] += float(np.diff(device.total_j(edges))[0])
            for run in device.runs:
                found[run.labels[key]] += float(np.diff(device.of_run_j(run, edges))[0])
    return dict(found)
