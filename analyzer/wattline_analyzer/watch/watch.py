"""Live state of nodes, from the samples of the last seconds.

Series that are missing in the newest scrape of their node are gone, and stale nodes have no values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.identity import Sighting, sightings_by_node
from wattline_analyzer.core.runs.scrapes import PATIENCE_S, USUAL_INTERVAL_S
from wattline_analyzer.core.sample_table import SampleTable, last, rows_of
from wattline_analyzer.core.samples import rests_s
from wattline_analyzer.watch.model import Device, LiveCarbon, LiveGpu, LiveNode, LiveRun, WatchState
from wattline_analyzer.watch.rows import live_gpus, live_runs

WATCHED = (
    *(
        m.BUILD_INFO,
        m.SOURCE_UP,
        m.GPU_INFO,
        m.GPU_UP,
        m.GPU_POWER,
        m.GPU_POWER_LIMIT,
        m.GPU_ENERGY,
        m.GPU_UTILIZATION,
    ),
    *(
        m.GPU_MEMORY_USED,
        m.GPU_MEMORY_TOTAL,
        m.GPU_TEMPERATURE,
        m.GPU_CLOCK,
        m.GPU_CLOCK_EVENT_SECONDS,
    ),
    *(m.GPU_PROCESS_MEMORY, m.CPU_POWER, m.CARBON_INTENSITY),
    *(
        m.RUN_INFO,
        m.RUN_GPU_INFO,
        m.RUN_START,
        m.RUN_END,
        m.RUN_OUTCOME,
        m.RUN_DURATION,
        m.RUN_ENERGY,
    ),
    *(
        m.RUN_ENERGY_UNCERTAINTY,
        m.RUN_WORK,
        m.RUN_ATTRIBUTED_ENERGY,
        m.RUN_ENERGY_BEFORE_USE,
        m.RUN_POWER_MAX,
    ),
    *(m.RUN_PHASE_SECONDS, m.RUN_PHASE_ENERGY, m.RUN_PHASE_WORK, m.RUN_WORK_UNIT),
)


def live_state(
    table: SampleTable,
    at_s: float,
    start_j: Mapping[Device, float],
    before: WatchState | None = None,
    run_id: str | None = None,
) -> WatchState:
    """Return the live state from the samples of the last seconds, for one run only with `run_id`.

    `start_j` are the counters of the GPUs at the start of the table. `before` is the previous
    state, whose nodes are kept as stale.
    """
    aliases = _aliases(table, at_s)
    if aliases:
        table = table.take(~table.where("instance", aliases))
    nodes = _with_lost([*_nodes(table, at_s)], before, at_s)
    known = {node.instance: node for node in nodes}
    since_s = {node.instance: node.seen_s - node.interval_s / 2 for node in nodes if not node.stale}
    instances = table.column("instance")
    earliest_s = np.array([since_s.get(instance, np.inf) for instance in instances.texts])
    live = table.take(table.t > earliest_s[instances.codes])
    stale = frozenset(node.instance for node in nodes if node.stale)
    runs = tuple(
        run for run in live_runs(table, live, stale) if run_id is None or run.run_id == run_id
    )
    gpus = list(live_gpus(table, live, known, runs, start_j))
    gpus += _lost(gpus, before)
    if run_id is not None:
        gpus = [gpu for gpu in gpus if run_id in gpu.runs or known[gpu.instance].stale]
    return WatchState(at_s, tuple(nodes), tuple(gpus), runs, tuple(_carbon(live, gpus)), aliases)


def _aliases(table: SampleTable, at_s: float) -> dict[str, str]:
    """Return the live instances that show the GPUs of another one, each with the one that counts:
    the same exporter twice.
    """
    stale = {node.instance for node in _nodes(table, at_s) if node.stale}
    sightings = [
        Sighting(
            instance, frozenset(rows.distinct("uuid")), float(rows.t.min()), float(rows.t.max())
        )
        for (instance,), rows in rows_of(table, m.GPU_INFO).groups("instance")
        if instance not in stale
    ]
    return {
        other.address: first.address
        for first, *others in sightings_by_node(sightings)
        for other in others
    }


def lost_state(before: WatchState, at_s: float) -> WatchState:
    """Return the state without a source: every node is stale."""
    gpus = tuple(_lost([], before))
    nodes = tuple(_with_lost([], before, at_s))
    return WatchState(
        at_s,
        nodes,
        gpus,
        tuple(LiveRun(run.run_id, run.workload, "stale", run.instances) for run in before.runs),
        (),
    )


def _with_lost(nodes: list[LiveNode], before: WatchState | None, at_s: float) -> list[LiveNode]:
    there = {node.instance for node in nodes}
    lost = [node for node in (before.nodes if before else ()) if node.instance not in there]
    gone = [replace(node, age_s=at_s - node.seen_s, stale=True, down=()) for node in lost]
    return sorted([*nodes, *gone], key=lambda node: node.instance)


def _lost(gpus: Iterable[LiveGpu], before: WatchState | None) -> list[LiveGpu]:
    """Return the GPUs of nodes without any sample."""
    there = {(gpu.instance, gpu.uuid) for gpu in gpus}
    return [
        LiveGpu(gpu.instance, gpu.gpu, gpu.uuid, gpu.name)
        for gpu in (before.gpus if before else ())
        if (gpu.instance, gpu.uuid) not in there
    ]


def _nodes(table: SampleTable, at_s: float) -> Iterable[LiveNode]:
    for (instance,), rows in rows_of(table, m.BUILD_INFO).groups("instance"):
        times = np.unique(rows.t)[-4:]
        interval_s = float(np.median(np.diff(times))) if len(times) > 1 else USUAL_INTERVAL_S
        newest_s = float(times[-1])
        age_s = max(at_s - newest_s, 0.0)
        stale = age_s > max(3 * interval_s, PATIENCE_S, rests_s(instance, untagged=True))
        mine = table.take(
            table.where("instance", [instance]) & (table.t > newest_s - interval_s / 2)
        )
        down = tuple(
            sorted(row.labels["source"] for row in last(mine, m.SOURCE_UP) if row.value == 0)
        )
        yield LiveNode(instance, newest_s, age_s, interval_s, stale, down)


def _carbon(live: SampleTable, gpus: Iterable[LiveGpu]) -> Iterable[LiveCarbon]:
    """Yield the emission rate of a node's GPUs, or CPUs without GPUs, at their present power."""
    powers: dict[str, list[float | None]] = {}
    for gpu in gpus:
        powers.setdefault(gpu.instance, []).append(gpu.power_w)
    cpus: dict[str, list[float | None]] = {}
    for row in last(live, m.CPU_POWER, zone="package"):
        cpus.setdefault(row.instance, []).append(row.value)
    for row in last(live, m.CARBON_INTENSITY):
        known = powers.get(row.instance) or cpus.get(row.instance) or [None]
        watts = None if None in known else sum(watts for watts in known if watts is not None)
        yield LiveCarbon(
            row.instance,
            row.labels.get("region", ""),
            row.labels.get("basis", ""),
            row.labels.get("quality", ""),
            row.value,
            "gpu" if row.instance in powers else "cpu",
            None if watts is None else watts / 1_000 * row.value,
        )
