"""Quantities in imported files: number, unit and plausible range; and the columns of a log that
hold them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.importers.content import FileContent, UnreadableError
from wattline_analyzer.importers.spool import StoredSamples
from wattline_analyzer.importers.text import delimiter, first_line, take_rows

_ABSENT = (
    *("n/a", "not supported", "unknown error", "not active", "insufficient permissions"),
    *("nan", "none", ""),
)
_GROUPED = re.compile(r"^[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?$")
_DECIMAL = re.compile(r"^[-+]?\d+,\d+$")
_CELL = re.compile(r"^([-+]?[\d.,]+(?:[eE][-+]?\d+)?)\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Quantity:
    """Kind of value with the factors of its units to Wattline's unit, the usual unit, and its
    plausible range.
    """

    name: str
    units: Mapping[str, float]
    usual: str
    low: float
    high: float

    def factor(self, unit: str) -> float:
        """Return the factor of a unit, the usual one for an empty text. Raises ValueError."""
        wanted = unit or self.usual
        factor = self.units.get(wanted)
        if factor is None:
            lower = {known.lower(): factor for known, factor in reversed(list(self.units.items()))}
            factor = lower.get(wanted.lower())
        if factor is None:
            raise ValueError(
                f"unknown unit {wanted[:20]!r} of {self.name}; known: {', '.join(self.units)}"
            )
        return factor

    def checked(self, value: float) -> float:
        """Return the value. Raises ValueError for a value that no such device has."""
        if not self.low <= value <= self.high:
            raise ValueError(
                f"implausible {self.name}: {value:,.10g}, expected {self.low:,g} to "
                f"{self.high:,g}; "
                "check the unit in the column's name"
            )
        return value

    def parse(self, text: str, column_unit: str = "") -> float | None:
        """Return the value of a cell, whose own unit precedes that of its column; None if absent.
        Raises ValueError.
        """
        match = _CELL.match(text)
        if match:
            return self.checked(_number(match[1], text) * self.factor(match[2] or column_unit))
        if text.lower().strip("[] ") in _ABSENT:
            return None
        raise ValueError(f"{text[:60]!r} is not a number")


def _number(digits: str, text: str) -> float:
    """Return a number. Raises ValueError."""
    try:
        return float(digits)
    except ValueError as error:
        raise ValueError(f"{text[:60]!r} is not a number; write it like 1250.5") from error


class Commas:
    """Meaning of the commas in the numbers of each column of a table: before decimals, or between
    thousands.
    """

    def __init__(self, content: FileContent) -> None:
        self._content = content
        self._is_decimal: dict[str, bool] = {}

    def without(self, cells: Mapping[str, str], column: str) -> str:
        """Return the text of a cell with a decimal point and without other separators.

        Raises UnreadableError if the column does not show what its commas mean.
        """
        text = cells.get(column, "")
        match = _CELL.match(text) if "," in text else None
        if not match:
            return text
        if column not in self._is_decimal:
            self._is_decimal[column] = self._find(column, text)
        digits = match[1]
        if self._is_decimal[column] and digits.count(",") == 1 and "." not in digits:
            return text.replace(",", ".", 1)
        if not self._is_decimal[column] and _GROUPED.match(digits):
            return digits.replace(",", "") + text[len(digits) :]
        return text

    def _find(self, column: str, example: str) -> bool:
        """Return whether the commas of a column precede decimals. Raises UnreadableError."""
        is_decimal = is_thousands = False

        def take(cells: Mapping[str, str]) -> None:
            nonlocal is_decimal, is_thousands
            match = _CELL.match(cells.get(column, ""))
            digits = match[1] if match else ""
            if _DECIMAL.match(digits) and (
                digits.lstrip("+-").startswith("0") or not _GROUPED.match(digits)
            ):
                is_decimal = True
            elif "." in digits or digits.count(",") > 1:
                is_thousands = True

        path = self._content.path
        take_rows(FileContent(path, self._content.form, self._content.options), take)
        if not is_decimal and not is_thousands:
            is_decimal = delimiter(first_line(path)) == ";"
        if is_decimal == is_thousands:
            raise UnreadableError(
                f"cannot import {path}: the commas of column {column!r} may precede decimals or "
                "separate thousands, as "
                f"in {example[:20]!r}; write its numbers with a decimal point and without other "
                "separators"
            )
        return is_decimal


@dataclass(frozen=True, slots=True)
class Gauge:
    """Metric of a column with its labels and its quantity."""

    metric: Metric
    labels: Mapping[str, str]
    quantity: Quantity


class GaugeColumns:
    """Columns of a log whose lines each hold the gauges of one GPU; `units` has the unit of each
    column.
    """

    def __init__(
        self, content: FileContent, gauges: Mapping[str, Gauge], units: Mapping[str, str]
    ) -> None:
        self._columns = [
            (name, gauge.quantity, units[name]) for name, gauge in gauges.items() if name in units
        ]
        self._power = next(
            (name for name, _, _ in self._columns if gauges[name].metric is m.GPU_POWER), None
        )
        self._without_power, self._commas = content.without_power, Commas(content)

        @cache
        def samples(name: str, index: str, uuid: str) -> StoredSamples:
            gauge = gauges[name]
            return content.samples(gauge.metric, {"gpu": index, "uuid": uuid, **gauge.labels})

        self._samples = samples

    def parse(self, cells: Mapping[str, str]) -> dict[str, float]:
        """Return the values of a row by column, without absent ones. Raises ValueError."""
        return {
            name: value
            for name, quantity, unit in self._columns
            if name in cells
            and (value := quantity.parse(self._commas.without(cells, name), unit)) is not None
        }

    def add(self, index: str, uuid: str, t_s: float, values: Mapping[str, float]) -> None:
        """Add the values of a row to the series of its GPU, and count a row without power."""
        if self._power and self._power not in values:
            self._without_power[index] += 1
        for name, value in values.items():
            self._samples(name, index, uuid).add(t_s, value)


_WATTS = {"W": 1.0, "mW": 1e-3, "kW": 1e3, "MW": 1e6, "watts": 1.0, "watt": 1.0}
GPU_POWER_W = Quantity("GPU power in W", _WATTS, "W", 0.0, 3_000.0)
"""No GPU draws 3 kW: the largest modules have limits of 1.4 kW."""
NODE_POWER_W = Quantity("power in W", _WATTS, "W", 0.0, 200_000.0)
"""Power of all GPUs of a node, or of the load of a wall meter or PDU."""
CPU_POWER_W = Quantity("CPU power in W", _WATTS, "W", 0.0, 3_000.0)
NUMBER = Quantity("number", {"": 1.0}, "", -1e300, 1e300)
RATIO = Quantity("share (1 is 100 %)", {"%": 0.01}, "%", 0.0, 2.0)
TEMPERATURE_CELSIUS = Quantity("temperature in °C", {"C": 1.0, "°C": 1.0}, "C", -60.0, 250.0)
CLOCK_HZ = Quantity(
    "clock in Hz", {"MHz": 1e6, "GHz": 1e9, "kHz": 1e3, "Hz": 1.0}, "MHz", 0.0, 2e10
)
MEMORY_BYTES = Quantity(
    "memory in bytes",
    {"MiB": 2.0**20, "GiB": 2.0**30, "KiB": 2.0**10, "MB": 1e6, "GB": 1e9, "KB": 1e3, "B": 1.0},
    "MiB",
    0.0,
    2.0**45,
)
