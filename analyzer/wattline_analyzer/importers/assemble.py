"""Runs with energies from the contents of imported files.

The energy is from the file's own counter, else the integral of power over the file's timestamps. If
neither is known, the run has no energy and no uncertainty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count

from wattline.contract import metrics as m
from wattline_analyzer.core.run_report import GPUS_WITHOUT_ENERGY
from wattline_analyzer.importers.content import ALL_GPUS, FileContent, FileRun, UnreadableError
from wattline_analyzer.importers.energies import (
    RunDeviceEnergy,
    counted_energies,
    integrate_power,
    phase_energies,
    powers_of,
    wall_energy,
)
from wattline_analyzer.importers.series import (
    IMPORTED,
    ImportedGpu,
    ImportedSeries,
    clean_series,
    imported_gpus,
)


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
    """Energy of the whole node from wall meters."""
    without_energy: tuple[str, ...] = ()
    """Indices of the run's GPUs whose power is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """Runs, series and GPUs of all files of an import."""

    runs: tuple[ImportedRun, ...]
    series: tuple[ImportedSeries, ...]
    gpus: tuple[ImportedGpu, ...]


def assemble_runs(
    contents: Sequence[FileContent],
    node: str,
    window: tuple[float | None, float | None],
    named: str | None = None,
) -> Assembly:
    """Combine runs with the logs of their time.

    `window` is the time range of the run if the files hold only logs; `named` is the id of a single
    run. Raises UnreadableError.
    """
    gpus = imported_gpus(contents, node)
    series = tuple(clean_series(contents, gpus))
    file_runs = [(run, content) for content in contents for run in content.runs]
    if not file_runs:
        file_runs = _run_of_logs(contents, series, window)
    logs = [content for content in contents if not content.runs]
    runs_so_far: list[ImportedRun] = []
    for run, content in file_runs:
        run_id = (
            named
            if named and len(file_runs) == 1
            else _run_id(run, content, {one.run_id for one in runs_so_far})
        )
        beside = [content, *(log for log in logs if log is not content)]
        runs_so_far.append(_run(run_id, run, beside, gpus, series))
    if not any(content.runs for content in contents) and any(
        not run.energies for run in runs_so_far
    ):
        raise UnreadableError(
            "nothing was imported: the power log has fewer than two times in the run; give a "
            "longer log, or other "
            "--start and --end"
        )
    return Assembly(tuple(runs_so_far), series, tuple(gpus))


def _run_of_logs(
    contents: Sequence[FileContent],
    series: Sequence[ImportedSeries],
    window: tuple[float | None, float | None],
) -> list[tuple[FileRun, FileContent]]:
    """Return one run of all logs, from their first to their last sample of power, or over
    `window`.
    """
    ends_s = [one.samples.ends_s for one in series if one.metric is m.GPU_POWER]
    if not ends_s:
        return []
    start_s = window[0] if window[0] is not None else min(first_s for first_s, _ in ends_s)
    end_s = window[1] if window[1] is not None else max(last_s for _, last_s in ends_s)
    powers = [
        content
        for content in contents
        if any(metric is m.GPU_POWER for metric, _ in content.series)
    ]
    stem = powers[0].path.stem
    whole = window == (None, None)
    return [
        (FileRun(stem, stem, start_s, end_s, caveats=("whole_log",) if whole else ()), powers[0])
    ]


def _run_id(run: FileRun, content: FileContent, taken: set[str]) -> str:
    """Return the id of a Wattline run; for other runs name and start, so that the same file gives
    the same id.
    """
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
    counted = counted_energies(file_run, gpus, beside[0])
    powers = powers_of(series, run_gpus)
    integrals = {
        key: found
        for key, samples in powers.items()
        if (found := integrate_power(key, samples, file_run))
    }
    _leave_out_sum(integrals, gpus)
    wall = wall_energy(series, file_run)
    energies = counted or integrals
    devices = {device for component, device in energies if component == "gpu"}
    indices = {gpu.index for gpu in run_gpus}
    used = [
        one
        for one in beside
        if one.runs or ((integrals or wall) and _is_used(one, file_run, indices))
    ]
    measured = tuple(gpu for gpu in gpus if gpu.uuid in devices)
    without = _without_energy(file_run, used, indices, measured) if measured and not counted else ()
    caveats = [*file_run.caveats, *(code for one in used for code in one.caveats)]
    return ImportedRun(
        run_id,
        replace(
            file_run,
            caveats=tuple(dict.fromkeys([*caveats, *([GPUS_WITHOUT_ENERGY] if without else [])])),
        ),
        tuple(dict.fromkeys(content.form for content in used)),
        tuple(dict.fromkeys(str(content.path) for content in used)),
        measured,
        tuple(energies[key] for key in sorted(energies)),
        phase_energies(file_run, {key: powers[key] for key in energies if key in powers}),
        wall,
        without,
    )


def _leave_out_sum(
    integrals: dict[tuple[str, str], RunDeviceEnergy], gpus: Sequence[ImportedGpu]
) -> None:
    """Remove the energy of all GPUs together if there are energies of single ones."""
    if sum(component == "gpu" for component, _ in integrals) > 1:
        for gpu in gpus:
            if gpu.index == ALL_GPUS:
                integrals.pop(("gpu", gpu.uuid), None)


def _without_energy(
    file_run: FileRun,
    used: Sequence[FileContent],
    indices: set[str],
    measured: Sequence[ImportedGpu],
) -> tuple[str, ...]:
    """Return the indices of GPUs in the logs or in the run that have no power during the run."""
    known = {gpu.index for gpu in measured}
    absent = {
        index
        for one in used
        for index in one.without_power
        if not file_run.gpus or index in file_run.gpus
    }
    return () if ALL_GPUS in known else tuple(sorted((absent | indices) - known - {ALL_GPUS, ""}))


def _gpus_of(file_run: FileRun, gpus: Sequence[ImportedGpu]) -> list[ImportedGpu]:
    """Return the run's GPUs; a run's only GPU and a log's only GPU without a UUID are assumed to be
    the same.
    """
    run_gpus = [
        gpu
        for gpu in gpus
        if not file_run.gpus or gpu.index in file_run.gpus or gpu.uuid in file_run.gpus
    ]
    if not run_gpus and len(file_run.gpus) == len(gpus) == 1 and gpus[0].uuid.startswith(IMPORTED):
        return list(gpus)
    return run_gpus


def _is_used(content: FileContent, file_run: FileRun, indices: set[str]) -> bool:
    """Return whether a log has power of the run's devices at a time of the run."""
    return any(
        min(samples.ends_s) <= file_run.end_s and max(samples.ends_s) >= file_run.start_s
        for (metric, labels), samples in content.series.items()
        if metric in (m.CPU_POWER, m.HWMON_POWER)
        or (metric is m.GPU_POWER and dict(labels)["gpu"] in indices)
    )
