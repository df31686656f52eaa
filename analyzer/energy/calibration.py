"""What a meter said of single cards: reading = gain · true power + offset, so that a reading can be put right. Pure.

A calibration is per card: two of one model differ by up to 7 % in gain (arXiv 2312.02741). The energy that was read
stays the headline; the calibrated one stands beside it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import yaml

from analyzer.energy.checks import Finding
from analyzer.model.interval import Interval, total

if TYPE_CHECKING:
    from analyzer.model.report import Device, Report, Work

_REQUIRED = ("uuid", "gain", "offset_watts")
_KEYS = (*_REQUIRED, "uncertainty_percent", "source")


class CalibrationError(ValueError):
    """The file is no calibration, or fits none of the run's cards; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of one card. `uncertainty_percent` is what stays uncertain after it, half of the interval."""

    uuid: str
    gain: float
    offset_w: float
    uncertainty_percent: float | None = None
    source: str = ""

    def energy(self, read: Interval, duration_s: float) -> Interval:
        """(E − offset · T) / gain. The interval is that of the reading: what the calibration leaves stands apart."""
        return Interval(read.value - self.offset_w * duration_s, read.half).scaled(1 / self.gain)


@dataclass(frozen=True, slots=True)
class Calibrated:
    """`energy` is that of all GPUs, None where one has no calibration; `per_unit` by unit of work."""

    energy: Interval | None
    per_unit: Mapping[str, Interval]


def parse(text: str, name: str) -> tuple[Calibration, ...]:
    """CSV with a head line, or YAML: a list, or a list under `cards`. Raises CalibrationError."""
    rows = _yaml_rows(text, name) if name.lower().endswith((".yml", ".yaml", ".json")) else _csv_rows(text)
    found: dict[str, Calibration] = {}
    for number, row in enumerate(rows, 1):
        where = f"{name}, entry {number}"
        one = _calibration(row, where)
        if one.uuid.lower() in found:
            raise CalibrationError(f"{where}: {one.uuid} is there twice; keep the calibration that holds")
        found[one.uuid.lower()] = one
    if not found:
        raise CalibrationError(f"{name} has no calibration in it; it wants lines of {', '.join(_KEYS)}")
    return tuple(found.values())


def _csv_rows(text: str) -> list[Mapping[str, Any]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return list(csv.DictReader(io.StringIO("\n".join(lines)), skipinitialspace=True))


def _yaml_rows(text: str, name: str) -> list[Mapping[str, Any]]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise CalibrationError(f"{name} is no YAML: {' '.join(str(error).split())[:200]}") from error
    rows = data.get("cards") if isinstance(data, dict) else data
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise CalibrationError(f"{name} is no list of cards, each with {', '.join(_REQUIRED)}")
    return rows


def _calibration(row: Mapping[str, Any], where: str) -> Calibration:
    strange = [str(key) for key in row if key not in _KEYS]
    if strange:
        raise CalibrationError(f"{where}: {strange[0]!r} is none of {', '.join(_KEYS)}")
    missing = [key for key in _REQUIRED if row.get(key) in (None, "")]
    if missing:
        raise CalibrationError(f"{where}: {missing[0]} is missing; each card has {', '.join(_REQUIRED)}")
    gain, offset_w = (_number(row[key], key, where) for key in ("gain", "offset_watts"))
    if gain <= 0:
        raise CalibrationError(f"{where}: gain is {gain:g}; it is reading over true power, so above 0 and near 1")
    uncertainty = row.get("uncertainty_percent")
    percent = None if uncertainty in (None, "") else _number(uncertainty, "uncertainty_percent", where)
    if percent is not None and percent < 0:
        raise CalibrationError(f"{where}: uncertainty_percent is {percent:g}; it is 0 or more")
    return Calibration(str(row["uuid"]).strip(), gain, offset_w, percent, str(row.get("source") or ""))


def _number(value: Any, key: str, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise CalibrationError(f"{where}: {key} is {value!r}, which is no number")
    return number


def applied(report: Report, cards: Sequence[Calibration]) -> Report:
    """With the calibrated energy of the GPUs that are in `cards`. Raises CalibrationError where none of them is."""
    by_uuid = {card.uuid.lower(): card for card in cards}
    mine = {gpu.device: by_uuid[gpu.device.lower()] for gpu in report.gpus if gpu.device.lower() in by_uuid}
    if not mine:
        named = ", ".join(gpu.device for gpu in report.gpus) or "none"
        raise CalibrationError(f"the calibration has none of the run's GPUs ({named}); see their UUIDs: nvidia-smi -L")
    devices = tuple(_with(device, mine.get(device.device)) for device in report.devices)
    report = replace(report, devices=devices)
    energies = [gpu.calibrated for gpu in report.gpus if gpu.calibrated]
    whole = total(energies) if len(energies) == len(report.gpus) else None
    per_unit = {work.unit: found for work in report.work if whole and (found := _per_unit(report, work, whole))}
    return replace(report, calibrated=Calibrated(whole, per_unit))


def _with(device: Device, card: Calibration | None) -> Device:
    if card is None or device.component != "gpu":
        return device
    energy = card.energy(device.energy, device.duration_s)
    percent = card.uncertainty_percent
    residual_j = None if percent is None else abs(energy.value) * percent / 100
    budget = replace(device.budget, residual_j=residual_j) if device.budget else None
    return replace(device, calibrated=energy, calibration=card, budget=budget)


def _per_unit(report: Report, work: Work, whole: Interval) -> Interval | None:
    """Over the phases of the work, whose energy is known of all GPUs together, only where all have one gain."""
    if work.amount <= 0 or work.energy_per_unit is None:
        return None
    if not work.phases:
        return whole.scaled(1 / work.amount)
    cards = [gpu.calibration for gpu in report.gpus if gpu.calibration]
    if len({card.gain for card in cards}) > 1:
        return None
    seconds = math.fsum(phase.duration_s for phase in report.phases if phase.name in work.phases)
    offset_j = math.fsum(card.offset_w for card in cards) * seconds
    read = work.energy_per_unit.scaled(work.amount)
    return Interval(read.value - offset_j, read.half).scaled(1 / (cards[0].gain * work.amount))


def findings(report: Report, cards: Sequence[Calibration]) -> list[Finding]:
    """What the file has no card for, and which of its cards the run has not."""
    gpus = {gpu.device.lower() for gpu in report.gpus}
    without = [gpu.label for gpu in report.gpus if gpu.calibration is None]
    found = []
    if without:
        text = "it is not in the calibration, so that the run has no calibrated energy; add its UUID to the file"
        found += [Finding("warning", "not_calibrated", label, text) for label in without]
    strangers = [card.uuid for card in cards if card.uuid.lower() not in gpus]
    if strangers:
        more = f" and {len(strangers) - 1} more" if len(strangers) > 1 else ""
        text = f"the calibration's {strangers[0]}{more} had no part in this run"
        found.append(Finding("note", "calibration_unused", "", text))
    return found
