"""From the samples of the last seconds to what nodes do now. Pure.

What was not in the newest scrape of its node has gone, and a node that is not scraped any more shows nothing: nothing
old is taken for live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from analyzer.live.gpus import gpus_now
from analyzer.live.runs import runs_now
from analyzer.live.samples import CarbonNow, Device, Glance, GpuNow, NodeNow, RunNow
from analyzer.model.samples import last, of
from exporter.contract import metrics as m

WATCHED = (
    *(m.BUILD_INFO, m.SOURCE_UP, m.GPU_INFO, m.GPU_UP, m.GPU_POWER, m.GPU_POWER_LIMIT, m.GPU_ENERGY, m.GPU_UTILIZATION),
    *(m.GPU_MEMORY_USED, m.GPU_MEMORY_TOTAL, m.GPU_TEMPERATURE, m.GPU_CLOCK, m.GPU_CLOCK_EVENT_SECONDS),
    *(m.GPU_PROCESS_MEMORY, m.CPU_POWER, m.CARBON_INTENSITY),
    *(m.RUN_INFO, m.RUN_GPU_INFO, m.RUN_START, m.RUN_END, m.RUN_OUTCOME, m.RUN_DURATION, m.RUN_ENERGY),
    *(m.RUN_ENERGY_UNCERTAINTY, m.RUN_WORK),
)
PATIENCE_S = 5.0
"""A node is live for three scrapes, and for this long at least."""
USUAL_INTERVAL_S = 15.0


def glance(
    frame: pd.DataFrame,
    at_s: float,
    began_j: Mapping[Device, float],
    before: Glance | None = None,
    run_id: str | None = None,
) -> Glance:
    """`frame` is tidy and of the last seconds; `began_j` are the GPUs' counters when the table began; `before` is the
    last glance, whose nodes are not forgotten. With `run_id` only that run and its GPUs.
    """
    nodes = _with_lost([*_nodes(frame, at_s)], before, at_s)
    known = {node.instance: node for node in nodes}
    since_s = {node.instance: node.seen_s - node.interval_s / 2 for node in nodes if not node.stale}
    live = frame[frame["t"] > frame["instance"].map(since_s).astype("float64")]
    stale = frozenset(node.instance for node in nodes if node.stale)
    runs = tuple(run for run in runs_now(frame, live, stale) if run_id is None or run.run_id == run_id)
    gpus = list(gpus_now(frame, live, known, runs, began_j))
    gpus += _lost(gpus, before)
    if run_id is not None:
        gpus = [gpu for gpu in gpus if run_id in gpu.runs or known[gpu.instance].stale]
    return Glance(at_s, tuple(nodes), tuple(gpus), runs, tuple(_carbon(live, gpus)))


def lost(before: Glance, at_s: float) -> Glance:
    """Where nothing can be read any more."""
    gpus, nodes = tuple(_lost([], before)), tuple(_with_lost([], before, at_s))
    return Glance(
        at_s, nodes, gpus, tuple(RunNow(run.run_id, run.workload, "stale", run.instances) for run in before.runs), ()
    )


def _with_lost(nodes: list[NodeNow], before: Glance | None, at_s: float) -> list[NodeNow]:
    there = {node.instance for node in nodes}
    lost = [node for node in (before.nodes if before else ()) if node.instance not in there]
    gone = [replace(node, age_s=at_s - node.seen_s, stale=True, down=()) for node in lost]
    return sorted([*nodes, *gone], key=lambda node: node.instance)


def _lost(gpus: Iterable[GpuNow], before: Glance | None) -> list[GpuNow]:
    """Of nodes that show nothing at all any more."""
    there = {(gpu.instance, gpu.uuid) for gpu in gpus}
    return [
        GpuNow(gpu.instance, gpu.gpu, gpu.uuid, gpu.name)
        for gpu in (before.gpus if before else ())
        if (gpu.instance, gpu.uuid) not in there
    ]


def _nodes(frame: pd.DataFrame, at_s: float) -> Iterable[NodeNow]:
    for instance, rows in of(frame, m.BUILD_INFO).groupby("instance"):
        times = np.unique(rows["t"].to_numpy(dtype=np.float64))[-4:]
        interval_s = float(np.median(np.diff(times))) if len(times) > 1 else USUAL_INTERVAL_S
        newest_s = float(times[-1])
        age_s = max(at_s - newest_s, 0.0)
        stale = age_s > max(3 * interval_s, PATIENCE_S)
        mine = frame[(frame["instance"] == instance) & (frame["t"] > newest_s - interval_s / 2)]
        down = tuple(sorted(row.labels["source"] for row in last(mine, m.SOURCE_UP) if row.value == 0))
        yield NodeNow(str(instance), newest_s, age_s, interval_s, stale, down)


def _carbon(live: pd.DataFrame, gpus: Iterable[GpuNow]) -> Iterable[CarbonNow]:
    """What the node's GPUs, or its CPUs where it has none, emit at their power of now."""
    powers: dict[str, list[float | None]] = {}
    for gpu in gpus:
        powers.setdefault(gpu.instance, []).append(gpu.power_w)
    cpus: dict[str, list[float | None]] = {}
    for row in last(live, m.CPU_POWER, zone="package"):
        cpus.setdefault(row.instance, []).append(row.value)
    for row in last(live, m.CARBON_INTENSITY):
        known = powers.get(row.instance) or cpus.get(row.instance) or [None]
        watts = None if None in known else sum(watts for watts in known if watts is not None)
        yield CarbonNow(
            row.instance,
            row.labels.get("region", ""),
            row.labels.get("basis", ""),
            row.labels.get("quality", ""),
            row.value,
            "gpu" if row.instance in powers else "cpu",
            None if watts is None else watts / 1_000 * row.value,
        )
