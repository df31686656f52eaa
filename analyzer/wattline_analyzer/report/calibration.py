"""Calibration of single GPUs by an external meter: reading = gain · true power + offset.

A calibration applies to one GPU: two of one model differ by up to 7 % in gain (arXiv 2312.02741).
The energy as read remains the headline; the calibrated energy is reported in addition.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from wattline.contract.work import energy_of_one
from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.devices import CalibratedGpu, Calibration, ReportDevice
from wattline_analyzer.core.run_report import Calibrated, Finding, RunEnergies, Work

_REQUIRED = ("uuid", "gain", "offset_watts")
_KEYS = (*_REQUIRED, "uncertainty_percent", "source")
_GAINS = (0.1, 10.0)
_MOST_OFFSET_W = 10_000.0


class CalibrationError(ValueError):
    """Invalid calibration file, or one without any GPU of the run; the message has cause and
    remedy.
    """


def parse_calibrations(text: str, name: str) -> tuple[Calibration, ...]:
    """Parse CSV with a header, or YAML: a list, or a list under `gpus`. Raises
    CalibrationError.
    """
    rows = (
        _yaml_rows(text, name)
        if name.lower().endswith((".yml", ".yaml", ".json"))
        else _csv_rows(text)
    )
    found: dict[str, Calibration] = {}
    for number, row in enumerate(rows, 1):
        where = f"{name}, entry {number}"
        one = _calibration(row, where)
        if one.uuid.lower() in found:
            raise CalibrationError(f"{where}: {one.uuid} occurs twice; keep the valid calibration")
        found[one.uuid.lower()] = one
    if not found:
        raise CalibrationError(f"{name} has no calibration; it needs rows of {', '.join(_KEYS)}")
    return tuple(found.values())


def _csv_rows(text: str) -> list[Mapping[str, Any]]:
    lines = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    return list(csv.DictReader(io.StringIO("\n".join(lines)), skipinitialspace=True))


def _yaml_rows(text: str, name: str) -> list[Mapping[str, Any]]:
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CalibrationError(
            f"{name} is not valid YAML: {' '.join(str(error).split())[:200]}"
        ) from error
    rows = data.get("gpus") if isinstance(data, dict) else data
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CalibrationError(f"{name} is not a list of GPUs, each with {', '.join(_REQUIRED)}")
    return rows


def _calibration(row: Mapping[str, Any], where: str) -> Calibration:
    strange = [str(key) for key in row if key not in _KEYS]
    if strange:
        raise CalibrationError(
            f"{where}: unknown key {strange[0]!r}; the keys are {', '.join(_KEYS)}"
        )
    missing = [key for key in _REQUIRED if row.get(key) in (None, "")]
    if missing:
        raise CalibrationError(
            f"{where}: {missing[0]} is missing; each GPU needs {', '.join(_REQUIRED)}"
        )
    gain, offset_w = (_number(row[key], key, where) for key in ("gain", "offset_watts"))
    if not _GAINS[0] <= gain <= _GAINS[1]:
        raise CalibrationError(
            f"{where}: gain is {gain:g}; it is the ratio of reading to true power, near 1 and from "
            f"{_GAINS[0]:g} to "
            f"{_GAINS[1]:g}"
        )
    if abs(offset_w) > _MOST_OFFSET_W:
        raise CalibrationError(
            f"{where}: offset_watts is {offset_w:g}; it is in W, at most {_MOST_OFFSET_W:g}"
        )
    uncertainty = row.get("uncertainty_percent")
    percent = (
        None if uncertainty in (None, "") else _number(uncertainty, "uncertainty_percent", where)
    )
    if percent is not None and percent < 0:
        raise CalibrationError(f"{where}: uncertainty_percent is {percent:g}; it must be 0 or more")
    return Calibration(
        str(row["uuid"]).strip(), gain, offset_w, percent, str(row.get("source") or "")
    )


def _number(value: Any, key: str, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise CalibrationError(f"{where}: {key} is {value!r}; it must be a number")
    return number


def calibrate(
    energies: RunEnergies, works: Sequence[Work], calibrations: Sequence[Calibration]
) -> Calibrated:
    """Return the calibrated energies of the run. Raises CalibrationError where no calibration fits
    a GPU.
    """
    by_uuid = {calibration.uuid.lower(): calibration for calibration in calibrations}
    gpus = energies.gpus
    calibrated = {
        gpu.key: _calibrated(gpu, by_uuid[gpu.device.lower()])
        for gpu in gpus
        if gpu.device.lower() in by_uuid
    }
    if not calibrated:
        named = ", ".join(gpu.device for gpu in gpus) or "none"
        raise CalibrationError(
            f"the calibration has none of the run's GPUs ({named}); see their UUIDs: nvidia-smi -L"
        )
    energy_of_each = [one.energy for one in calibrated.values()]
    whole = sum_of_correlated(energy_of_each) if len(energy_of_each) == len(gpus) else None
    used = [one.calibration for one in calibrated.values()]
    per_unit = {
        work.unit: energy
        for work in works
        if whole and (energy := _per_unit(energies, work, whole, used))
    }
    return Calibrated(calibrated, whole, per_unit)


def _calibrated(gpu: ReportDevice, calibration: Calibration) -> CalibratedGpu:
    """Return the calibrated GPU. Raises CalibrationError if the offset alone is more than its
    energy as read.
    """
    if gpu.mean_power_w and calibration.offset_w > max(gpu.mean_power_w.number, 0.0):
        raise CalibrationError(
            f"the calibration of {gpu.device} gives a negative energy: its offset of "
            f"{calibration.offset_w:g} W is "
            f"above the mean power of {gpu.mean_power_w.value:.1f} W as read; check offset_watts"
        )
    return CalibratedGpu(calibration, calibration.energy(gpu.energy, gpu.duration_s))


def _per_unit(
    energies: RunEnergies, work: Work, whole: Figure, calibrations: Sequence[Calibration]
) -> Figure | None:
    """Return the calibrated energy per unit.

    The energy of phases is known of all GPUs together, so that work in phases needs the same gain
    for all of them.
    """
    if work.amount <= 0 or work.energy_per_unit is None:
        return None
    if work.whole_devices is not None:
        share = Figure(whole.number).scaled(energies.share_ratios["gpu"])
        return energy_of_one(share, work.amount)
    if not work.phases:
        return energy_of_one(whole, work.amount)
    if len({calibration.gain for calibration in calibrations}) > 1:
        return None
    seconds = math.fsum(phase.duration_s for phase in energies.phases if phase.name in work.phases)
    offset_j = math.fsum(calibration.offset_w for calibration in calibrations) * seconds
    read = work.energy_per_unit.scaled(work.amount)
    return Figure(read.number - offset_j, read.half_width).scaled(
        1 / (calibrations[0].gain * work.amount)
    )


def calibration_findings(
    gpus: Sequence[ReportDevice], calibrated: Calibrated, calibrations: Sequence[Calibration]
) -> list[Finding]:
    """Return GPUs without a calibration, and calibrations of GPUs that are not in the run."""
    text = (
        "the calibration lacks this GPU, so that the run has no calibrated energy; add its "
        "UUID to the file"
    )
    found = [
        Finding("warning", "not_calibrated", gpu.label, text)
        for gpu in gpus
        if gpu.key not in calibrated.gpus
    ]
    known = {gpu.device.lower() for gpu in gpus}
    unused = [
        calibration.uuid for calibration in calibrations if calibration.uuid.lower() not in known
    ]
    if unused:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        text = f"the calibration of {unused[0]}{more} is not used: the GPU is not in this run"
        found.append(Finding("note", "calibration_unused", "", text))
    return found
