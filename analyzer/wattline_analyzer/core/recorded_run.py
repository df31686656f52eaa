"""A run read from its series, and the times of its scrapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from wattline.contract import metrics as m
from wattline.contract.run import Run, RunDevice, RunFormatError, combine, node_aliases
from wattline.contract.run_series import SeriesRow, from_rows
from wattline_analyzer.core.devices import DeviceKey, GpuModel
from wattline_analyzer.core.sample_table import SampleTable, last, rows_of, samples
from wattline_analyzer.core.samples import Samples
from wattline_analyzer.core.timeline import Window, windows

_SERIES = (
    m.RUN_INFO,
    m.RUN_START,
    m.RUN_DURATION,
    m.RUN_END,
    m.RUN_OUTCOME,
    m.RUN_GPU_INFO,
    m.RUN_INTEGRATED_ENERGY,
    m.RUN_POWER_MAX,
    m.RUN_ENERGY,
    m.RUN_ENERGY_BEFORE_USE,
    m.RUN_ENERGY_UNCERTAINTY,
    m.RUN_COVERED_RATIO,
    m.RUN_ATTRIBUTED_ENERGY,
    m.RUN_EMISSIONS,
    m.RUN_EMISSIONS_COVERED_RATIO,
    m.RUN_WORK,
    m.RUN_WORK_UNIT,
    m.RUN_WORK_TIMESTAMP,
    m.RUN_RESULT,
    m.RUN_PHASE_ENERGY,
    m.RUN_PHASE_ENERGY_UNCERTAINTY,
    m.RUN_PHASE_WORK,
)
"""Metrics of a run of which the newest samples count."""


@dataclass(frozen=True, slots=True)
class RunScrapes:
    """Times and gaps of the scrapes of a run, by instance.

    `ages` are the run's durations at each scrape. `emitting` are the pairs of instance and basis
    with emissions, `without_ratio` the devices without a series of their covered ratio. `aliases`
    maps an instance to the one that is the same node; aliases are not counted.
    """

    windows: Mapping[str, Window]
    ages: Mapping[str, Samples]
    emitting: frozenset[tuple[str, str]]
    without_ratio: frozenset[DeviceKey]
    aliases: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run of all its nodes, and its scrapes."""

    run: Run
    scrapes: RunScrapes


def recorded_key(device: RunDevice) -> DeviceKey:
    """Return the identity of a recorded device."""
    return DeviceKey(device.node, device.component, device.device_id)


def gpu_models(table: SampleTable) -> dict[str, GpuModel]:
    """Return the models of the GPUs that the table shows, by UUID."""
    return {
        row.labels["uuid"]: GpuModel(row.labels.get("name", ""), row.labels.get("architecture", ""))
        for row in last(table, m.GPU_INFO)
    }


def read_run(
    table: SampleTable, run_id: str, models: Mapping[str, GpuModel], *, untagged: bool = False
) -> RecordedRun:
    """Return the run of its own series; `models` are those of the GPUs by UUID.

    The nodes of an untagged range are distinct already, so that no aliases are searched there.
    Raises RunFormatError for a run without a start on any node.
    """
    parts = node_runs(table, run_id, models)
    if not parts:
        raise RunFormatError(f"run {run_id}: no series of its start")
    aliases = {} if untagged else node_aliases(parts)
    own = {node: run for node, run in parts.items() if node not in aliases}
    shown = windows(table, run_id)
    emissions = last(table, m.RUN_EMISSIONS, run_id=run_id)
    covered = {
        DeviceKey(row.instance, row.labels["component"], row.labels["device"])
        for row in last(table, m.RUN_COVERED_RATIO, run_id=run_id)
    }
    run = combine(list(own.values()))
    keys = {recorded_key(device) for device in run.devices}
    scrapes = RunScrapes(
        windows={node: shown[node] for node in own},
        ages={node: samples(table, m.RUN_DURATION, instance=node, run_id=run_id) for node in own},
        emitting=frozenset(
            (row.instance, row.labels["basis"]) for row in emissions if row.instance in own
        ),
        without_ratio=frozenset(keys - covered),
        aliases=aliases,
    )
    return RecordedRun(run, scrapes)


def node_runs(table: SampleTable, run_id: str, models: Mapping[str, GpuModel]) -> dict[str, Run]:
    """Return the part of the run on each instance that has its start, aliases included."""
    rows: defaultdict[str, list[SeriesRow]] = defaultdict(list)
    for instance, row in _phase_rows(table, run_id):
        rows[instance].append(row)
    for metric in _SERIES:
        for one in last(table, metric, run_id=run_id):
            rows[one.instance].append(SeriesRow(metric, one.labels, one.value))
    started = {row.instance for row in last(table, m.RUN_START, run_id=run_id)}
    return {
        node: from_rows([*rows[node], *_model_rows(rows[node], models)], node)
        for node in sorted(started)
    }


def _model_rows(rows: Iterable[SeriesRow], models: Mapping[str, GpuModel]) -> Iterator[SeriesRow]:
    """Yield the names of the GPUs that the rows have."""
    for uuid in {row.labels.get("uuid") or row.labels.get("device", "") for row in rows}:
        if uuid in models:
            labels = {"uuid": uuid, **models[uuid]._asdict()}
            yield SeriesRow(m.GPU_INFO, labels, 1.0)


def _phase_rows(table: SampleTable, run_id: str) -> Iterator[tuple[str, SeriesRow]]:
    """Yield instance and row of each start of a phase, in the order of the starts, and then of the
    seconds of each phase, in the order of the scrapes.
    """
    starts = rows_of(table, m.RUN_PHASE_START, run_id=run_id)
    seconds = rows_of(table, m.RUN_PHASE_SECONDS, run_id=run_id)
    for metric, scraped, order in (
        (m.RUN_PHASE_START, starts, starts.value),
        (m.RUN_PHASE_SECONDS, seconds, seconds.t),
    ):
        columns = (scraped.texts("phase"), scraped.texts("instance"), scraped.value.tolist())
        latest: dict[tuple[str, str], float] = {}
        for _, phase, instance, value in sorted(zip(order.tolist(), *columns, strict=True)):
            if latest.get((phase, instance)) != value:
                yield instance, SeriesRow(metric, {"run_id": run_id, "phase": phase}, value)
            latest[phase, instance] = value
