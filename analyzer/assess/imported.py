"""What to know of a run that was imported from files: who measured it, how closely, and what its file got wrong. Pure.

The importer leaves this in the run's labels and results, so that it stays with the run wherever its series go.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from analyzer.energy.checks import Finding
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, last
from exporter.contract import metrics as m

FORMAT_LABEL = "import_format"
FILE_LABEL = "import_file"
SPACING_LABEL = "import_spacing_seconds"
NOTES_LABEL = "import_notes"
CLAIMED_ENERGY = "claimed_energy_joules"
WALL_ENERGY = "wall_energy_joules"
WALL_RATIO = "wall_covered_ratio"
_CLOSE = 0.05
_COVERED = 0.99


def is_imported(labels: Mapping[str, str]) -> bool:
    return FORMAT_LABEL in labels


def is_of_file(frames: RunFrames) -> bool:
    info = last(frames.ledger, m.RUN_INFO, run_id=frames.run_id)
    return any(f"label_{FORMAT_LABEL}" in row.labels for row in info)


def told_share(frames: RunFrames, covered_ratio: float | None) -> float:
    """Of the run's time, that which a device's energy is of: files and untagged ranges tell none of what they did not
    see.
    """
    whole = covered_ratio is None or not (frames.untagged or is_of_file(frames))
    return 1.0 if whole else covered_ratio or 0.0


def findings(report: Report) -> list[Finding]:
    if not is_imported(report.labels):
        return []
    notes = report.labels.get(NOTES_LABEL, "").split(",")
    found = [Finding("note", "imported", "", _origin(report))]
    if "gpu0_only" in notes:
        text = "the file has the power of GPU 0 only: what the run's other GPUs drew is missing from its energy"
        found.append(Finding("warning", "gpu0_only", "", text))
    if "whole_log" in notes:
        text = (
            "the run is the whole log, with whatever idle time is in it: cut the run out with "
            "analyzer import --start and --end"
        )
        found.append(Finding("warning", "whole_log", "", text))
    return [*found, *_uncovered(report), *_claimed(report), *_wall(report)]


def _uncovered(report: Report) -> list[Finding]:
    """No energy is made up for a time without samples, so what is there is too low."""
    text = (
        "its energy, and that net of idle, are of the time which the file's samples cover: energy and mean power of "
        "the run are higher"
    )
    return [
        Finding("warning", "uncovered", device.label, text)
        for device in report.devices
        if device.covered_ratio is not None and device.covered_ratio < _COVERED and "counter" not in device.methods
    ]


def _origin(report: Report) -> str:
    origin = f"imported from {report.labels.get(FILE_LABEL, 'a file')} ({report.labels[FORMAT_LABEL]})"
    methods = {method for device in report.devices for method in device.methods}
    if SPACING_LABEL in report.labels:
        origin += (
            f", power sampled every {report.labels[SPACING_LABEL]} s: the energy is its integral over the file's "
            "timestamps, and what the power was between samples is not known, so neither is the interval"
        )
    elif methods:
        origin += ", whose own counter the energy is"
        origin += (
            "" if all(device.energy.half is not None for device in report.devices) else "; its interval is not known"
        )
    return origin


def _claimed(report: Report) -> list[Finding]:
    """A file's total may be by nominal time: power times --interval, however long the loop really took."""
    claimed_j, energy = report.results.get(CLAIMED_ENERGY), report.headline
    if claimed_j is None or energy is None or energy.value <= 0 or abs(claimed_j / energy.value - 1) <= _CLOSE:
        return []
    apart = f"{energy.value / claimed_j:.1f} times too low" if 0 < claimed_j < energy.value else "wrong"
    text = (
        f"the file's own total of {claimed_j:.0f} J is by the nominal interval and is {apart}: "
        f"by its timestamps it is {energy.value:.0f} J, which stands here"
    )
    return [Finding("warning", "nominal_time", "", text)]


def _wall(report: Report) -> list[Finding]:
    """What NVML and RAPL missed: power supply, board, fans, disks."""
    wall_j, ratio = report.results.get(WALL_ENERGY), report.results.get(WALL_RATIO, 0.0)
    if wall_j is None or wall_j <= 0 or not report.energy:
        return []
    if ratio < _COVERED:
        text = f"the wall meter covers {100 * ratio:.0f} % of the run, so that it cannot be held against the sensors"
        return [Finding("warning", "wall_meter_short", "", text)]
    sensed_j = math.fsum(quantity.value for quantity in report.energy.values())
    parts = " + ".join(component.upper() for component in report.energy)
    if sensed_j > wall_j:
        text = (
            f"the sensors ({parts}) count {sensed_j:.0f} J, more than the wall meter's {wall_j:.0f} J: one of them lies"
        )
        return [Finding("bad", "wall_meter_below", "", text)]
    missed_j, sensed_percent = wall_j - sensed_j, 100 * sensed_j / wall_j
    text = (
        f"the wall meter counted {wall_j:.0f} J; the sensors ({parts}) {sensed_j:.0f} J, {sensed_percent:.1f} % of it: "
        f"{missed_j:.0f} J ({100 - sensed_percent:.1f} %) are in none of these figures"
    )
    return [Finding("note", "wall_meter", "", text)]
