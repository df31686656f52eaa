"""Logs of a wall meter, a smart plug or a PDU: a CSV with a time and watts. The power of the whole node."""

from __future__ import annotations

from pathlib import Path

from analyzer.importers.content import Content, Reading, UnreadableError
from analyzer.importers.text import guarded, header, moment_s, number, rows
from exporter.contract import metrics as m

FORM = "wall-meter"
CHIP = "wall-meter"
"""The label `chip` of the meter's power: it stands beside the node's sensors, and is never added to them."""
_TIMES = ("time", "timestamp", "date", "datetime", "unixtime", "unix_time", "t")
_POWERS = {"watts": 1.0, "watt": 1.0, "power": 1.0, "power_w": 1.0, "power [w]": 1.0, "power (w)": 1.0, "w": 1.0}
_POWERS |= {"power_mw": 1e-3, "power (mw)": 1e-3, "power_kw": 1e3, "power (kw)": 1e3}


def is_it(columns: list[str]) -> bool:
    return bool(_column(columns, _TIMES) and _column(columns, _POWERS))


def read(path: Path, reading: Reading) -> Content:
    """Raises UnreadableError."""
    content = Content(path, FORM)
    columns = header(path)
    time, power = _column(columns, _TIMES), _column(columns, _POWERS)
    if not time or not power:
        raise UnreadableError(f"{path}:1: no columns time and watts; name them so in the first line")
    factor, where = _POWERS[power.lower()], {"chip": CHIP, "sensor": path.stem}
    for line, cells in rows(path):

        def take(cells: dict[str, str] = cells) -> None:
            power_w = number(cells[power])
            if power_w is not None:
                content.tracks.add(m.HWMON_POWER, where, moment_s(cells[time], reading.zone), power_w * factor)

        guarded(content.bad, line, take)
    return content


def _column(columns: list[str], names: tuple[str, ...] | dict[str, float]) -> str | None:
    return next((column for column in columns if column.lower() in names), None)
