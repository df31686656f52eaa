"""Checks of a run imported from files: its origin, its sampling and errors of the file.

The importer stores the origin in the labels and results of the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from wattline.contract.run import Run
from wattline.figures import Figure, short_joules_text
from wattline_analyzer.core.devices import SAMPLED_RATIO, ReportDevice
from wattline_analyzer.core.run_report import (
    CLAIMED_ENERGY,
    DUPLICATE_SAMPLES,
    FILE_LABEL,
    FORMAT_LABEL,
    GPUS_BY_ORDER,
    GPUS_WITHOUT_ENERGY,
    LABELS_CUT,
    NOTES_LABELS,
    POWER_COLUMN_NOTE,
    SPACING_LABEL,
    WALL_ENERGY,
    WALL_RATIO,
    WHOLE_SECONDS,
    Finding,
    RunEnergies,
)

_CLOSE = 0.05
_MEAN_COLUMNS = ("power.draw", "power.draw.average")
_MEAN_S = 1.0


def import_findings(run: Run, energies: RunEnergies) -> list[Finding]:
    if FORMAT_LABEL not in run.labels:
        return []
    notes = _notes(run.labels)
    found = [Finding("note", "imported", "", _origin(run.labels, energies.devices))]
    if "gpu0_only" in notes:
        text = "the file has the power of GPU 0 only: the energy of the run's other GPUs is missing"
        found.append(Finding("warning", "gpu0_only", "", text))
    if GPUS_WITHOUT_ENERGY in notes:
        text = "the file has no energy of some of the run's GPUs: the energy of the run is higher"
        found.append(Finding("warning", "gpus_without_energy", "", text))
    if DUPLICATE_SAMPLES in notes:
        text = "its file has samples with one time and different values; the first value counts"
        found.append(Finding("warning", "duplicate_samples", "", text))
    if GPUS_BY_ORDER in notes:
        text = (
            "the log names no GPU: its GPUs are distinguished by the order of the lines of "
            "each time"
        )
        found.append(Finding("warning", "gpus_by_order", "", text))
    if LABELS_CUT in notes:
        text = (
            "its file has more than 16 labels, or a label of more than 128 characters; those "
            "beyond are left out"
        )
        found.append(Finding("warning", "labels_cut", "", text))
    if WHOLE_SECONDS in notes:
        text = (
            "its file gives only the second in which it was written: start and end are known to 2 s"
        )
        found.append(Finding("warning", "whole_seconds", "", text))
    if "whole_log" in notes:
        text = (
            "the run is the whole log, including idle time: select the run with analyzer "
            "import --start and --end"
        )
        found.append(Finding("warning", "whole_log", "", text))
    return [
        *found,
        *_uncovered(energies.devices),
        *_claimed(run.results, energies.headline),
        *_wall(run.results, energies.by_component),
    ]


def _notes(labels: Mapping[str, str]) -> list[str]:
    return [note for name in NOTES_LABELS for note in labels.get(name, "").split(",")]


def _uncovered(devices: Sequence[ReportDevice]) -> list[Finding]:
    """Return devices whose energy is too low, since a time without samples has no energy."""
    text = (
        "its energy, also net of idle, covers only the time of the file's samples: the energy and "
        "mean power of the "
        "run are higher"
    )
    return [
        Finding("warning", "uncovered", device.label, text)
        for device in devices
        if device.covered_ratio is not None
        and device.covered_ratio < SAMPLED_RATIO
        and "counter" not in device.methods
    ]


def _origin(labels: Mapping[str, str], devices: Sequence[ReportDevice]) -> str:
    origin = f"imported from {labels.get(FILE_LABEL, 'a file')} ({labels[FORMAT_LABEL]})"
    known = all(device.energy.half_width is not None for device in devices)
    if SPACING_LABEL in labels:
        origin += (
            f", power sampled every {labels[SPACING_LABEL]} s: the energy is its "
            "integral by timestamps"
        )
        origin += "; its 95 % CI is for changes of the power between samples" if known else ""
    elif any(device.methods for device in devices):
        origin += ", the energy is its own counter's"
    if devices and not known:
        origin += "; its uncertainty is unknown"
    column = _power_column(labels)
    if column:
        origin += f"; power is the column {column}"
    if column in _MEAN_COLUMNS:
        origin += (
            ", which from the Ampere architecture on is a mean over the last second: the energy "
            "lags the load by up to "
            "a second at start and end, which is part of the interval"
        )
    return origin


def averaging_s(labels: Mapping[str, str]) -> float | None:
    """Return the time over which the power of an imported run is a mean, None for other runs."""
    if FORMAT_LABEL not in labels:
        return None
    return _MEAN_S if _power_column(labels) in _MEAN_COLUMNS else 0.0


def _power_column(labels: Mapping[str, str]) -> str:
    notes = (note for note in _notes(labels) if note.startswith(POWER_COLUMN_NOTE))
    return next((note.removeprefix(POWER_COLUMN_NOTE) for note in notes), "")


def _claimed(results: Mapping[str, float], energy: Figure | None) -> list[Finding]:
    """Compare with the file's total, which may be power times --interval, not by timestamps."""
    claimed_j = results.get(CLAIMED_ENERGY)
    if (
        claimed_j is None
        or energy is None
        or energy.number <= 0
        or abs(claimed_j / energy.number - 1) <= _CLOSE
    ):
        return []
    apart = (
        f"{energy.number / claimed_j:.1f} times too low"
        if 0 < claimed_j < energy.number
        else "wrong"
    )
    text = (
        f"the file's own total of {short_joules_text(claimed_j)} uses the nominal interval and is "
        f"{apart}: with its timestamps it is {short_joules_text(energy.number)}, the figure of "
        "this report"
    )
    return [Finding("warning", "nominal_time", "", text)]


def _wall(results: Mapping[str, float], energy: Mapping[str, Figure]) -> list[Finding]:
    """Compare with a wall meter, which includes power supply, board, fans and disks."""
    wall_j = results.get(WALL_ENERGY)
    ratio = results.get(WALL_RATIO, 0.0)
    if wall_j is None or wall_j <= 0 or not energy:
        return []
    if ratio < SAMPLED_RATIO:
        text = (
            f"the wall meter covers {100 * ratio:.0f} % of the run, too little to compare it "
            "with the sensors"
        )
        return [Finding("warning", "wall_meter_short", "", text)]
    sensed_j = math.fsum(quantity.number for quantity in energy.values())
    parts = " + ".join(component.upper() for component in energy)
    if sensed_j > wall_j:
        text = (
            f"the sensors ({parts}) count {short_joules_text(sensed_j)}, more than the "
            f"wall meter's {short_joules_text(wall_j)}: at least one sensor is inaccurate"
        )
        return [Finding("bad", "wall_meter_below", "", text)]
    missed_j = wall_j - sensed_j
    sensed_percent = 100 * sensed_j / wall_j
    text = (
        f"the wall meter counted {short_joules_text(wall_j)}; the sensors ({parts}) "
        f"{short_joules_text(sensed_j)}, "
        f"{sensed_percent:.1f} % of it: "
        f"{short_joules_text(missed_j)} ({100 - sensed_percent:.1f} %) are not included"
    )
    return [Finding("note", "wall_meter", "", text)]
