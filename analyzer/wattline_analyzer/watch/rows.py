"""Live state of GPUs and runs, from their newest samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.api import OUTCOMES
from wattline.contract.metrics import Metric
from wattline.contract.run import combine
from wattline.contract.run_series import SeriesRow
from wattline_analyzer.core.devices import GpuModel
from wattline_analyzer.core.facts import fact_of_row
from wattline_analyzer.core.recorded_run import RUN_FACTS, gpu_models, node_runs
from wattline_analyzer.core.sample_table import SampleTable, join_tables, last, rows_of
from wattline_analyzer.watch.model import Device, LiveGpu, LiveNode, LiveRun

_LEAST_EVENT_RATIO = 0.05
"""Ratio of the time between two scrapes from which a clock event is shown."""
_NO_SLOWDOWN = ("gpu_idle", "applications_clocks_setting", "display_clock_setting", "sync_boost")
_NOW_S = 3.0
_GAUGES: dict[str, tuple[Metric, dict[str, str]]] = {
    "power_w": (m.GPU_POWER, {}),
    "limit_w": (m.GPU_POWER_LIMIT, {"kind": "enforced"}),
    "utilization": (m.GPU_UTILIZATION, {"engine": "gpu"}),
    "memory_used_bytes": (m.GPU_MEMORY_USED, {}),
    "memory_total_bytes": (m.GPU_MEMORY_TOTAL, {}),
    "temperature_celsius": (m.GPU_TEMPERATURE, {"sensor": "gpu"}),
    "sm_clock_hz": (m.GPU_CLOCK, {"domain": "sm"}),
}
_RATE_S = 10.0


def live_gpus(
    table: SampleTable,
    live: SampleTable,
    nodes: Mapping[str, LiveNode],
    runs: Iterable[LiveRun],
    start_j: Mapping[Device, float],
) -> Iterator[LiveGpu]:
    """Yield the GPUs of the last seconds; `live` are the newest samples of live nodes."""
    newest = {name: _readings(live, metric, **labels) for name, (metric, labels) in _GAUGES.items()}
    ups = _readings(live, m.GPU_UP)
    counters_j = _readings(live, m.GPU_ENERGY)
    names = _texts(live, m.GPU_INFO, "name")
    processes = _texts(live, m.GPU_PROCESS_MEMORY, "name")
    clock_events = _clock_events(table, nodes)
    run_energies_j = {
        (row.instance, row.labels["device"], row.labels["run_id"]): row.value
        for row in last(live, m.RUN_ENERGY, component="gpu")
    }
    open_runs = _open_runs(live, runs)
    for device, index in _known_devices(table):
        on_it = open_runs.get(device, ())
        counter_j = counters_j.get(device)
        first_j = start_j.get(device)
        since_j = (
            None
            if counter_j is None or first_j is None or counter_j < first_j
            else counter_j - first_j
        )
        run_j = run_energies_j.get((*device, on_it[0])) if on_it else None
        gpu = LiveGpu(
            *(device[0], index, device[1], next(iter(names.get(device, ())), "")),
            up=ups[device] > 0 if device in ups else None,
            counter_j=counter_j,
            energy_j=run_j if run_j is not None else since_j,
            energy_of=on_it[0] if run_j is not None else "",
            clock_events=clock_events.get(device, ()),
            processes=processes.get(device, ()),
            runs=on_it,
        )
        known: dict[str, Any] = {
            name: values[device] for name, values in newest.items() if device in values
        }
        yield replace(gpu, **known)


def _known_devices(table: SampleTable) -> list[tuple[Device, str]]:
    found = {
        (row.instance, row.labels["uuid"]): row.labels["gpu"]
        for metric in (m.GPU_UP, m.GPU_POWER)
        for row in last(table, metric)
    }
    return sorted(found.items(), key=lambda item: (item[0][0], item[1].zfill(4)))


def _readings(live: SampleTable, metric: Metric, **labels: str) -> dict[Device, float]:
    return {(row.instance, row.labels["uuid"]): row.value for row in last(live, metric, **labels)}


def _texts(live: SampleTable, metric: Metric, label: str) -> dict[Device, tuple[str, ...]]:
    """Return the label's values by device, the series with the largest value first."""
    found: dict[Device, tuple[str, ...]] = {}
    for row in sorted(last(live, metric), key=lambda row: -row.value):
        device = (row.instance, row.labels["uuid"])
        found[device] = tuple(dict.fromkeys([*found.get(device, ()), row.labels.get(label, "")]))
    return found


def _open_runs(live: SampleTable, runs: Iterable[LiveRun]) -> dict[Device, tuple[str, ...]]:
    """Return the running runs by device, the oldest first."""
    on = {
        (row.instance, row.labels["uuid"], row.labels["run_id"])
        for row in last(live, m.RUN_GPU_INFO)
    }
    ids = [run.run_id for run in runs if run.state == "running"]
    return {
        (instance, uuid): tuple(run_id for run_id in ids if (instance, uuid, run_id) in on)
        for instance, uuid, _ in on
    }


def _clock_events(
    table: SampleTable, nodes: Mapping[str, LiveNode]
) -> dict[Device, tuple[str, ...]]:
    """Return the reasons with rising seconds between the last two scrapes, the longest first."""
    rows = rows_of(table, m.GPU_CLOCK_EVENT_SECONDS)
    shares: dict[Device, dict[str, float]] = {}
    for (instance, uuid, reason), series in rows.groups("instance", "uuid", "reason"):
        node = nodes.get(instance)
        if node is None or node.stale or reason in _NO_SLOWDOWN:
            continue
        recent = series.take(series.t >= node.seen_s - max(1.5 * node.interval_s, _NOW_S))
        order = np.argsort(recent.t)
        t = recent.t[order]
        seconds = recent.value[order]
        if len(t) > 1 and t[-1] > node.seen_s - node.interval_s / 2 and t[-1] > t[0]:
            share = float((seconds[-1] - seconds[0]) / (t[-1] - t[0]))
            if share >= _LEAST_EVENT_RATIO:
                shares.setdefault((instance, uuid), {})[reason] = share
    return {
        device: tuple(sorted(found, key=lambda one: -found[one]))
        for device, found in shares.items()
    }


def live_runs(table: SampleTable, live: SampleTable, stale: AbstractSet[str]) -> Iterator[LiveRun]:
    """Yield running and just ended runs, the oldest first. `live` are the newest samples of live
    nodes; a run on a `stale` node has no values.
    """
    shown = join_tables([live, table.take(table.where("instance", stale))])
    starts = sorted(last(shown, m.RUN_START), key=lambda row: row.value)
    models = gpu_models(last(table, m.GPU_INFO))
    for run_id in dict.fromkeys(row.labels["run_id"] for row in starts):
        instances = tuple(row.instance for row in starts if row.labels["run_id"] == run_id)
        workloads = [
            row.labels.get("workload", "") for row in last(shown, m.RUN_INFO, run_id=run_id)
        ]
        of_run = live.take(live.where("run_id", [run_id]))
        state = "stale" if stale & set(instances) else _state(of_run, len(instances))
        yield _run(table, of_run, run_id, (next(iter(workloads), ""), state, instances), models)


def _state(of_run: SampleTable, instances: int) -> str:
    if len(last(of_run, m.RUN_END)) < instances:
        return "running"
    outcomes = [row.labels["outcome"] for row in last(of_run, m.RUN_OUTCOME)]
    return next((outcome for outcome in OUTCOMES if outcome in outcomes), "ended")


def _run(
    table: SampleTable,
    of_run: SampleTable,
    run_id: str,
    known: tuple[str, str, tuple[str, ...]],
    models: Mapping[str, GpuModel],
) -> LiveRun:
    facts = [
        fact_of_row(SeriesRow(metric, row.labels, row.value), row.instance, row.t)
        for metric in RUN_FACTS
        for row in last(of_run, metric)
    ]
    parts = node_runs(facts, of_run, models)
    if not parts:
        return LiveRun(run_id, *known)
    run = combine(list(parts.values()))
    if known[1] in ("running", "stale"):
        run = replace(run, state="running")
    unit = next((unit for unit, amount in run.amounts.items() if amount > 0), None)
    each = run.unit_energy(unit) if unit else None
    return LiveRun(
        run_id,
        *known,
        run.duration_s,
        {component: run.energy(component) for component in run.components},
        unit,
        run.work[unit] if unit else None,
        _rate(table, run_id, unit) if unit and known[1] == "running" else None,
        each.energy if each else None,
        each.phases if each else (),
        shared=each is not None and each.whole_device is not None,
    )


def _rate(table: SampleTable, run_id: str, unit: str) -> float | None:
    """Return the rate over the last seconds, of all instances together."""
    found = []
    for _, rows in rows_of(table, m.RUN_WORK, run_id=run_id, unit=unit).groups("instance"):
        order = np.argsort(rows.t)
        t = rows.t[order]
        amounts = rows.value[order]
        first = min(int(np.searchsorted(t, t[-1] - _RATE_S)), max(len(t) - 2, 0))
        if t[-1] > t[first]:
            found.append(float((amounts[-1] - amounts[first]) / (t[-1] - t[first])))
    return sum(found) if found else None
