"""Reader of SPEC PTDaemon's logs of a power analyzer, as MLPerf Power keeps them: spl.txt and
ptd_logs.txt.

A sample is `Time,12-23-2020
10:21:51.496,Watts,23.43,Volts,228.37,Amps,0.20428,PF,0.5023,Mark,NAME`, with month before day, in
local time; other lines are messages. Names and order follow `RE_PTD_LOG` in
`ptd_client_server/lib/server.py`, times and marks `compliance/check.py` in mlcommons/power-dev.
After the mark an analyzer with several channels writes `Ch1,Watts,…` for each one; the watts before
the mark are then their sum, and volts, amps and power factor before it are -1, which means unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from wattline.contract import metrics as m
from wattline_analyzer.importers.content import FileContent, ReadOptions
from wattline_analyzer.importers.file_format import FileFormat, FileHead
from wattline_analyzer.importers.formats.power_meters import CHIP
from wattline_analyzer.importers.quantities import NODE_POWER_W
from wattline_analyzer.importers.text import take_lines

PTDAEMON_FORMAT = "ptdaemon"
PTDAEMON_FILES = ("spl.txt", "ptd_logs.txt")
_SAMPLE = "Time,"
_NAMES = ["Time", "Watts", "Volts", "Amps"]
_MARK = "Mark"
_RANGING = "_ranging"
"""End of the mark of the first of two measurements, which only finds the ranges of the analyzer."""
_MOMENT = re.compile(r"(\d\d)-(\d\d)-(\d{4}) (\d\d:\d\d:\d\d\.\d+)")
_PROBLEM = re.compile(r"\b(?:WARNING|ERROR):\s*(.*)")
_CLOSE_RATIO = 0.05
_CLOSE_W = 1.0
"""Greatest difference between watts and the product or sum that they must be."""
_UNKNOWN = "-1"


def is_ptdaemon(head: FileHead) -> bool:
    line = head.first_line
    is_sample = line.startswith(_SAMPLE) and ",Watts," in line and f",{_MARK}," in line
    return is_sample or head.path.name in PTDAEMON_FILES


def read_ptdaemon(path: Path, options: ReadOptions) -> FileContent:
    """Return the power of the whole node; samples in ranging mode are left out. Raises
    UnreadableError.
    """
    content = FileContent(path, PTDAEMON_FORMAT, options)
    series = content.samples(m.HWMON_POWER, {"chip": CHIP, "sensor": path.stem})
    problems: list[str] = []
    ranging = 0

    def take(line: str) -> None:
        nonlocal ranging
        if not line.startswith(_SAMPLE):
            if problem := _PROBLEM.search(line):
                problems.append(problem[1].strip())
            return
        time, power_w, mark = _parse(line)
        if mark.endswith(_RANGING):
            ranging += 1
        elif power_w is None:
            content.without_power[""] += 1
        else:
            series.add(content.times.parse(time), power_w)

    take_lines(content, take)
    if ranging:
        content.notes.append(
            f"{path}: left out {ranging} samples in ranging mode, whose uncertainty is unknown"
        )
    if problems:
        content.notes.append(
            f"{path}: warnings and errors of PTDaemon: {len(problems)}, the first: "
            f"{problems[0][:120]}"
        )
    return content


def _parse(line: str) -> tuple[str, float | None, str]:
    """Return time in ISO 8601, watts and mark of a sample. Raises ValueError."""
    cells = [cell.strip() for cell in line.split(",")]
    if cells[0:8:2] != _NAMES or _MARK not in cells[8::2]:
        raise ValueError(
            f"not a sample of PTDaemon: expected {', '.join(_NAMES)} and {_MARK}, each with a value"
        )
    moment = _MOMENT.fullmatch(cells[1])
    if moment is None:
        raise ValueError(f"{cells[1][:60]!r} is not a time as 12-31-2020 10:21:51.496")
    month, day, year, clock = moment.groups()
    at = cells.index(_MARK, 8)
    power_w = _watts(cells[3])
    if power_w is not None:
        _check_product(power_w, dict(zip(cells[4:at:2], map(float, cells[5:at:2]), strict=False)))
        _check_channels(power_w, cells[at + 2 :])
    return f"{year}-{month}-{day} {clock}", power_w, cells[at + 1]


def _watts(cell: str) -> float | None:
    """Return the power, None if it is unknown. Raises ValueError."""
    return None if cell.partition(".")[0] == _UNKNOWN else NODE_POWER_W.parse(cell)


def _check_product(power_w: float, values: Mapping[str, float]) -> None:
    """Raise ValueError if the power is not the product of volts, amps and power factor, where these
    are known.
    """
    factors = [values.get(name, -1.0) for name in ("Volts", "Amps", "PF")]
    if all(factor >= 0 for factor in factors) and not _is_close(power_w, math.prod(factors)):
        volts, amps, factor = factors
        raise ValueError(
            f"{power_w:g} W contradict {volts:g} V, {amps:g} A and power factor {factor:g}; check "
            "the columns and units"
        )


def _check_channels(power_w: float, cells: Sequence[str]) -> None:
    """Raise ValueError if the power is not the sum of the channels."""
    powers_w = [float(value) for name, value in pairwise(cells) if name == "Watts"]
    if powers_w and not _is_close(power_w, math.fsum(powers_w)):
        raise ValueError(
            f"{power_w:g} W are not the sum of the channels, {math.fsum(powers_w):g} W; check the "
            "channels"
        )


def _is_close(power_w: float, other_w: float) -> bool:
    return abs(other_w - power_w) <= max(_CLOSE_RATIO * power_w, _CLOSE_W)


FORMATS = (FileFormat(PTDAEMON_FORMAT, is_ptdaemon, read_ptdaemon, file_names=PTDAEMON_FILES),)
