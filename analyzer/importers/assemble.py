"""From files' contents to runs with energies: logs laid beside the runs that other files tell of. Pure.

Energy is the file's own counter's where it has one, else the integral of power over the file's real timestamps. Where
neither is known there is none, and no interval is made up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count

import numpy as np

from analyzer.energy.integrate import SENSOR_S, trapezoid
from analyzer.importers.content import Content, FileRun
from analyzer.importers.gpus import IMPORTED, Gpu, gpus_of
from analyzer.model.samples import GAP_FACTOR, Samples, clean, median_spacing_s
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """One series, cleaned; `labels` are the metric's own and the instance."""

    metric: Metric
    labels: Mapping[str, str]
    samples: Samples


@dataclass(frozen=True, slots=True)
class Energy:
    """`method` is counter or integral; of an integral, `covered_ratio` is the part of the run that samples cover."""

    component: str
    device: str
    energy_j: float
    method: str
    half_j: float | None = None
    covered_ratio: float | None = None
    spacing_s: float | None = None
    max_w: float | None = None


@dataclass(frozen=True, slots=True)
class AssembledRun:
    run_id: str
    told: FileRun
    forms: tuple[str, ...]
    files: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    energies: tuple[Energy, ...]
    phase_energies: Mapping[str, Mapping[str, float]]
    """Joules by phase and component, of the phases that samples cover."""
    wall: Energy | None
    """The whole node's, from a meter at the wall."""


@dataclass(frozen=True, slots=True, eq=False)
class Assembled:
    runs: tuple[AssembledRun, ...]
    tracks: tuple[Track, ...]
    gpus: tuple[Gpu, ...]


def assembled(
    contents: Sequence[Content], node: str, window: tuple[float | None, float | None], named: str | None = None
) -> Assembled:
    """`window` cuts the run out of logs that tell of none; `named` is the run's id, where there is but one."""
    gpus = gpus_of(contents, node)
    tracks = tuple(_tracks(contents, gpus))
    told = [(run, content) for content in contents for run in content.runs]
    if not told:
        told = _of_logs(contents, tracks, window)
    logs = [content for content in contents if not content.runs]
    made: list[AssembledRun] = []
    for run, content in told:
        run_id = named if named and len(told) == 1 else _run_id(run, content, {one.run_id for one in made})
        beside = [content, *(log for log in logs if log is not content)]
        made.append(_run(run_id, run, beside, gpus, tracks))
    return Assembled(tuple(made), tracks, tuple(gpus))


def _tracks(contents: Sequence[Content], gpus: list[Gpu]) -> list[Track]:
    by_index = {gpu.index: gpu.uuid for gpu in gpus}
    found: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[Metric, list[tuple[float, float]]]] = {}
    for content in contents:
        for (metric, labels), samples in content.tracks.found.items():
            where = dict(labels)
            if "gpu" in where:
                where["uuid"] = by_index[where["gpu"]]
            found.setdefault((metric.name, tuple(sorted(where.items()))), (metric, []))[1].extend(samples)
    return [
        Track(metric, dict(labels), clean(*np.array(samples, dtype=np.float64).T))
        for (_, labels), (metric, samples) in found.items()
    ]


def _of_logs(
    contents: Sequence[Content], tracks: Sequence[Track], window: tuple[float | None, float | None]
) -> list[tuple[FileRun, Content]]:
    """One run of all the logs, from their first sample of power to their last, or as the user says."""
    seen = [track.samples.t for track in tracks if track.metric is m.GPU_POWER and len(track.samples)]
    if not seen:
        return []
    start_s = window[0] if window[0] is not None else min(float(t[0]) for t in seen)
    end_s = window[1] if window[1] is not None else max(float(t[-1]) for t in seen)
    powers = [content for content in contents if any(metric is m.GPU_POWER for metric, _ in content.tracks.found)]
    stem = powers[0].path.stem
    whole = window == (None, None)
    return [(FileRun(stem, stem, start_s, end_s, caveats=("whole_log",) if whole else ()), powers[0])]


def _run_id(run: FileRun, content: Content, taken: set[str]) -> str:
    """A run of ours keeps its id; others get their name and begin, so that the same file gives the same id again."""
    clean_name = re.sub(r"[^A-Za-z0-9._-]+", "-", run.name).strip("-._") or "run"
    if content.form == "wattline":
        return clean_name[:64]
    began = datetime.fromtimestamp(run.start_s, UTC).strftime("%Y%m%d-%H%M%S")
    tries = (f"-{number}" if number > 1 else "" for number in count(1))
    ids = (f"{clean_name[: 63 - len(began) - len(again)]}-{began}{again}" for again in tries)
    return next(run_id for run_id in ids if run_id not in taken)


def _run(
    run_id: str, told: FileRun, beside: Sequence[Content], gpus: Sequence[Gpu], tracks: Sequence[Track]
) -> AssembledRun:
    mine = _gpus_of(told, gpus)
    counted = {
        (energy.component, _device(energy.device, gpus)): Energy(
            energy.component, _device(energy.device, gpus), energy.energy_j, "counter", energy.half_j
        )
        for energy in told.energies
    }
    powers = _powers(tracks, mine)
    integrals = {key: found for key, samples in powers.items() if (found := integral(key, samples, told))}
    walls = [track for track in tracks if track.metric is m.HWMON_POWER]
    wall = integral(("wall", ""), walls[0].samples, told) if len(walls) == 1 else None
    energies = counted or integrals
    devices = {device for component, device in energies if component == "gpu"}
    used = [content for content in beside if content.runs or _is_used(content, integrals, wall)]
    return AssembledRun(
        run_id,
        told,
        tuple(dict.fromkeys(content.form for content in used)),
        tuple(dict.fromkeys(str(content.path) for content in used)),
        tuple(gpu for gpu in gpus if gpu.uuid in devices),
        tuple(energies[key] for key in sorted(energies)),
        _phase_energies(told, {key: powers[key] for key in energies if key in powers}),
        wall,
    )


def _gpus_of(told: FileRun, gpus: Sequence[Gpu]) -> list[Gpu]:
    """A run's one GPU, and a log's one GPU of which it names no UUID, are taken for the same."""
    mine = [gpu for gpu in gpus if not told.gpus or gpu.index in told.gpus or gpu.uuid in told.gpus]
    if not mine and len(told.gpus) == len(gpus) == 1 and gpus[0].uuid.startswith(IMPORTED):
        return list(gpus)
    return mine


def _device(named: str, gpus: Sequence[Gpu]) -> str:
    return next((gpu.uuid for gpu in gpus if named in (gpu.index, gpu.uuid)), named)


def _is_used(content: Content, integrals: Mapping[tuple[str, str], Energy], wall: Energy | None) -> bool:
    metrics = {metric for metric, _ in content.tracks.found}
    return bool(integrals and metrics & {m.GPU_POWER, m.CPU_POWER}) or bool(wall and m.HWMON_POWER in metrics)


def _powers(tracks: Sequence[Track], gpus: Sequence[Gpu]) -> dict[tuple[str, str], Samples]:
    uuids, found = {gpu.uuid for gpu in gpus}, {}
    for track in tracks:
        if track.metric is m.GPU_POWER and track.labels["uuid"] in uuids:
            found["gpu", track.labels["uuid"]] = track.samples
        elif track.metric is m.CPU_POWER:
            component = "dram" if track.labels["zone"] == "dram" else "cpu"
            found[component, track.labels["package"]] = track.samples
    return found


def integral(key: tuple[str, str], power: Samples, told: FileRun) -> Energy | None:
    """None where fewer than two samples touch the run."""
    spacing_s = median_spacing_s(power.between(told.start_s, told.end_s)) or median_spacing_s(power)
    if spacing_s is None:
        return None
    found = trapezoid(power, told.start_s, told.end_s, max(GAP_FACTOR * spacing_s, SENSOR_S))
    if found.covered_s <= 0:
        return None
    during_w = power.between(told.start_s, told.end_s).value
    return Energy(
        *key,
        found.energy_j,
        "integral",
        covered_ratio=min(found.covered_s / (told.end_s - told.start_s), 1.0),
        spacing_s=spacing_s,
        max_w=float(during_w.max()) if len(during_w) else None,
    )


def _phase_energies(told: FileRun, powers: Mapping[tuple[str, str], Samples]) -> dict[str, dict[str, float]]:
    """A phase that came more than once is the sum of its times; one that samples do not cover whole has no energy."""
    sums: dict[str, dict[str, float]] = {}
    uncovered: set[tuple[str, str]] = set()
    for phase in told.phases:
        for key, power in powers.items():
            span = replace(told, start_s=phase.start_s, end_s=phase.end_s)
            found = integral(key, power, span) if phase.end_s > phase.start_s else None
            if found is None or (found.covered_ratio or 0.0) < 0.99:
                uncovered.add((phase.name, key[0]))
                continue
            by_component = sums.setdefault(phase.name, {})
            by_component[key[0]] = by_component.get(key[0], 0.0) + found.energy_j
    return {
        name: {component: joules for component, joules in parts.items() if (name, component) not in uncovered}
        for name, parts in sums.items()
    }
