"""Reader of logs of wall meters, smart plugs and PDUs: a CSV with the node's power."""

from __future__ import annotations

from pathlib import Path

from analyzer.importers.content import FileContent, ReadOptions, UnreadableError
from analyzer.importers.text import collect_bad_line, csv_header, csv_rows, parse_number
from analyzer.model.time_text import parse_moment
from exporter.contract import metrics as m

FORM = "wall-meter"
CHIP = "wall-meter"
"""Label `chip` of the meter's power, which is never added to the power of the node's sensors."""
_TIMES = ("time", "timestamp", "date", "datetime", "unixtime", "unix_time", "t")
_POWERS = {"watts": 1.0, "watt": 1.0, "power": 1.0, "power_w": 1.0, "power [w]": 1.0, "power (w)": 1.0, "w": 1.0}
_POWERS |= {"power_mw": 1e-3, "power (mw)": 1e-3, "power_kw": 1e3, "power (kw)": 1e3}


def is_wall_meter(columns: list[str]) -> bool:
    return bool(_column(columns, _TIMES) and _column(columns, _POWERS))


def read_wall_meter(path: Path, options: ReadOptions) -> FileContent:
    """Raises UnreadableError."""
    content = FileContent(path, FORM)
    columns = csv_header(path)
    time, power = _column(columns, _TIMES), _column(columns, _POWERS)
    if not time or not power:
        raise UnreadableError(f"cannot import {path}: no columns time and watts in line 1; rename its columns")
    factor, where = _POWERS[power.lower()], {"chip": CHIP, "sensor": path.stem}
    for line, cells in csv_rows(path):
        with collect_bad_line(content.bad, line):
            power_w = parse_number(cells[power])
            if power_w is not None:
                content.series.add(m.HWMON_POWER, where, parse_moment(cells[time], options.zone), power_w * factor)
    return content


def _column(columns: list[str], names: tuple[str, ...] | dict[str, float]) -> str | None:
    return next((column for column in columns if column.lower() in names), None)
