"""Runs with energies from the contents of imported files.

The energy is from the file's own counter, else the integral of power over the file's timestamps. If neither is
known, the run has no energy and no uncertainty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count

from analyzer.energy.integrate import SENSOR_S
from analyzer.importers.content import FileContent, FileRun, UnreadableError, short_uuid
from analyzer.importers.spool import StoredSamples, in_order
from analyzer.model.samples import GAP_FACTOR
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

IMPORTED = "imported-"
"""Prefix of the name of a GPU whose UUID is in no file."""


@dataclass(frozen=True, slots=True)
class ImportedGpu:
    """GPU of imported files."""

    index: str
    uuid: str
    info: Mapping[str, str] = field(default_factory=dict)


def imported_gpus(contents: Sequence[FileContent], node: str) -> list[ImportedGpu]:
    """Return the GPUs by index; one whose UUID is in no file gets a name that no driver gives.

    Raises UnreadableError if files give two UUIDs for one index.
    """
    uuids: dict[str, str] = {}
    info: dict[str, dict[str, str]] = {}
    for content in contents:
        for _, labels in content.series:
            where = dict(labels)
            if "gpu" in where:
                _name(uuids, where["gpu"], where["uuid"])
        for index, more in content.gpu_info.items():
            info.setdefault(index, {}).update(more)
    for energy in (energy for content in contents for run in content.runs for energy in run.energies):
        if energy.component == "gpu" and energy.device not in {*uuids, *uuids.values()}:
            is_uuid = energy.device.startswith(("GPU-", "MIG-"))
            index = (energy.index or short_uuid(energy.device)) if is_uuid else energy.device
            _name(uuids, index, energy.device if is_uuid else "")
    return [
        ImportedGpu(index, uuid or f"{IMPORTED}{node}-{index}", info.get(index, {})) for index, uuid in uuids.items()
    ]


def _name(uuids: dict[str, str], index: str, uuid: str) -> None:
    known = uuids.get(index, "")
    if uuid and known not in ("", uuid):
        raise UnreadableError(
            f"two files disagree about GPU {index}: it is {known} and {uuid}, on two nodes or after a reboot; "
            "import the files of each node separately, each with its own --node"
        )
    uuids[index] = uuid or known


@dataclass(frozen=True, slots=True, eq=False)
class ImportedSeries:
    """Series by time with the labels of its metric and the instance."""

    metric: Metric
    labels: Mapping[str, str]
    samples: StoredSamples


@dataclass(frozen=True, slots=True)
class RunDeviceEnergy:
    """Energy of one device over a run; for an integral, `covered_ratio` is the part of the run with samples."""

    component: str
    device: str
    energy_j: float
    method: str
    half_j: float | None = None
    covered_ratio: float | None = None
    spacing_s: float | None = None
    max_w: float | None = None


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """Run of imported files with its devices and energies."""

    run_id: str
    file_run: FileRun
    forms: tuple[str, ...]
    files: tuple[str, ...]
    gpus: tuple[ImportedGpu, ...]
    energies: tuple[RunDeviceEnergy, ...]
    phase_energies: Mapping[str, Mapping[str, float]]
    """Joules by phase and component, of the phases that are covered by samples."""
    wall: RunDeviceEnergy | None
    """Energy of the whole node from a wall meter."""


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """Runs, series and GPUs of all files of an import."""

    runs: tuple[ImportedRun, ...]
    series: tuple[ImportedSeries, ...]
    gpus: tuple[ImportedGpu, ...]


def assemble_runs(
    contents: Sequence[FileContent], node: str, window: tuple[float | None, float | None], named: str | None = None
) -> Assembly:
    """Combine runs with the logs of their time.

    `window` is the time range of the run if the files hold only logs; `named` is the id of a single run. Raises
    UnreadableError.
    """
    gpus = imported_gpus(contents, node)
    series = tuple(_clean_series(contents, gpus))
    file_runs = [(run, content) for content in contents for run in content.runs]
    if not file_runs:
        file_runs = _run_of_logs(contents, series, window)
    logs = [content for content in contents if not content.runs]
    runs_so_far: list[ImportedRun] = []
    for run, content in file_runs:
        run_id = named if named and len(file_runs) == 1 else _run_id(run, content, {one.run_id for one in runs_so_far})
        beside = [content, *(log for log in logs if log is not content)]
        runs_so_far.append(_run(run_id, run, beside, gpus, series))
    if not any(content.runs for content in contents) and any(not run.energies for run in runs_so_far):
        raise UnreadableError(
            "nothing was imported: the power log has fewer than two times in the run; give a longer log, or other "
            "--start and --end"
        )
    return Assembly(tuple(runs_so_far), series, tuple(gpus))


def _clean_series(contents: Sequence[FileContent], gpus: list[ImportedGpu]) -> list[ImportedSeries]:
    by_index = {gpu.index: gpu.uuid for gpu in gpus}
    found: dict[tuple[Metric, tuple[tuple[str, str], ...]], list[StoredSamples]] = {}
    for content in contents:
        for (metric, labels), samples in content.series.items():
            where = dict(labels)
            if "gpu" in where:
                where["uuid"] = by_index[where["gpu"]]
            found.setdefault((metric, tuple(sorted(where.items()))), []).append(samples)
    return [ImportedSeries(metric, dict(labels), in_order(samples)) for (metric, labels), samples in found.items()]


def _run_of_logs(
    contents: Sequence[FileContent], series: Sequence[ImportedSeries], window: tuple[float | None, float | None]
) -> list[tuple[FileRun, FileContent]]:
    """Return one run of all logs, from their first to their last sample of power, or over `window`."""
    ends_s = [one.samples.ends_s for one in series if one.metric is m.GPU_POWER]
    if not ends_s:
        return []
    start_s = window[0] if window[0] is not None else min(first_s for first_s, _ in ends_s)
    end_s = window[1] if window[1] is not None else max(last_s for _, last_s in ends_s)
    powers = [content for content in contents if any(metric is m.GPU_POWER for metric, _ in content.series)]
    stem = powers[0].path.stem
    whole = window == (None, None)
    return [(FileRun(stem, stem, start_s, end_s, caveats=("whole_log",) if whole else ()), powers[0])]


def _run_id(run: FileRun, content: FileContent, taken: set[str]) -> str:
    """Return the id of a Wattline run; for other runs name and start, so that the same file gives the same id."""
    clean_name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-._") or "run"
    if content.form == "wattline":
        return clean_name[:64]
    began = datetime.fromtimestamp(run.start_s, UTC).strftime("%Y%m%d-%H%M%S")
    tries = (f"-{number}" if number > 1 else "" for number in count(1))
    ids = (f"{clean_name[: 63 - len(began) - len(again)]}-{began}{again}" for again in tries)
    return next(run_id for run_id in ids if run_id not in taken)


def _run(
    run_id: str,
    file_run: FileRun,
    beside: Sequence[FileContent],
    gpus: Sequence[ImportedGpu],
    series: Sequence[ImportedSeries],
) -> ImportedRun:
    run_gpus = _gpus_of(file_run, gpus)
    counted = _counted(file_run, gpus, beside[0])
    powers = _powers(series, run_gpus)
    integrals = {key: found for key, samples in powers.items() if (found := integrate_power(key, samples, file_run))}
    walls = [one for one in series if one.metric is m.HWMON_POWER]
    wall = integrate_power(("wall", ""), walls[0].samples, file_run) if len(walls) == 1 else None
    energies = counted or integrals
    devices = {device for component, device in energies if component == "gpu"}
    used = [content for content in beside if content.runs or _is_used(content, integrals, wall)]
    return ImportedRun(
        run_id,
        replace(file_run, caveats=tuple(dict.fromkeys([*file_run.caveats, *(c for one in used for c in one.caveats)]))),
        tuple(dict.fromkeys(content.form for content in used)),
        tuple(dict.fromkeys(str(content.path) for content in used)),
        tuple(gpu for gpu in gpus if gpu.uuid in devices),
        tuple(energies[key] for key in sorted(energies)),
        _phase_energies(file_run, {key: powers[key] for key in energies if key in powers}),
        wall,
    )


def _counted(
    file_run: FileRun, gpus: Sequence[ImportedGpu], content: FileContent
) -> dict[tuple[str, str], RunDeviceEnergy]:
    """Return the energies of the file's own counters. Raises UnreadableError for two energies of one device."""
    found: dict[tuple[str, str], RunDeviceEnergy] = {}
    for energy in file_run.energies:
        key = energy.component, _device(energy.device, gpus)
        if key in found:
            raise UnreadableError(
                f"cannot import {content.path}: {key[0].upper()} {energy.device} has two energies; "
                "write one energy for each device"
            )
        found[key] = RunDeviceEnergy(*key, energy.energy_j, "counter", energy.half_j)
    return found


def _gpus_of(file_run: FileRun, gpus: Sequence[ImportedGpu]) -> list[ImportedGpu]:
    """Return the run's GPUs; a run's only GPU and a log's only GPU without a UUID are assumed to be the same."""
    run_gpus = [gpu for gpu in gpus if not file_run.gpus or gpu.index in file_run.gpus or gpu.uuid in file_run.gpus]
    if not run_gpus and len(file_run.gpus) == len(gpus) == 1 and gpus[0].uuid.startswith(IMPORTED):
        return list(gpus)
    return run_gpus


def _device(named: str, gpus: Sequence[ImportedGpu]) -> str:
    return next((gpu.uuid for gpu in gpus if named in (gpu.index, gpu.uuid)), named)


def _is_used(
    content: FileContent, integrals: Mapping[tuple[str, str], RunDeviceEnergy], wall: RunDeviceEnergy | None
) -> bool:
    metrics = {metric for metric, _ in content.series}
    return bool(integrals and metrics & {m.GPU_POWER, m.CPU_POWER}) or bool(wall and m.HWMON_POWER in metrics)


def _powers(series: Sequence[ImportedSeries], gpus: Sequence[ImportedGpu]) -> dict[tuple[str, str], StoredSamples]:
    uuids, found = {gpu.uuid for gpu in gpus}, {}
    for one in series:
        if one.metric is m.GPU_POWER and one.labels["uuid"] in uuids:
            found["gpu", one.labels["uuid"]] = one.samples
        elif one.metric is m.CPU_POWER:
            component = "dram" if one.labels["zone"] == "dram" else "cpu"
            found[component, one.labels["package"]] = one.samples
    return found


def integrate_power(key: tuple[str, str], power: StoredSamples, file_run: FileRun) -> RunDeviceEnergy | None:
    """Return the energy from power samples, None if fewer than two samples touch the run."""
    start_s, end_s, whole_s = file_run.start_s, file_run.end_s, power.spacing_s
    if whole_s is None:
        return None
    spacing_s = power.spacing_between_s(start_s, end_s) or whole_s
    found = power.integral(start_s, end_s, max(GAP_FACTOR * whole_s, GAP_FACTOR * spacing_s, SENSOR_S))
    if found.covered_s <= 0:
        return None
    return RunDeviceEnergy(
        *key,
        found.energy_j,
        "integral",
        covered_ratio=min(found.covered_s / (end_s - start_s), 1.0),
        spacing_s=spacing_s,
        max_w=power.highest(start_s, end_s),
    )


def _phase_energies(file_run: FileRun, powers: Mapping[tuple[str, str], StoredSamples]) -> dict[str, dict[str, float]]:
    """Return joules by phase and component; phases without full coverage by samples are left out.

    The energy of a phase that occurs several times is the sum.
    """
    sums: dict[str, dict[str, float]] = {}
    uncovered: set[tuple[str, str]] = set()
    for phase in file_run.phases:
        for key, power in powers.items():
            span = replace(file_run, start_s=phase.start_s, end_s=phase.end_s)
            found = integrate_power(key, power, span) if phase.end_s > phase.start_s else None
            if found is None or (found.covered_ratio or 0.0) < 0.99:
                uncovered.add((phase.name, key[0]))
                continue
            by_component = sums.setdefault(phase.name, {})
            by_component[key[0]] = by_component.get(key[0], 0.0) + found.energy_j
    return {
        name: {component: joules for component, joules in parts.items() if (name, component) not in uncovered}
        for name, parts in sums.items()
    }
