"""Reader of carbon intensities in CSV files.

The columns are `time`, `g_per_kwh`, and optionally `basis`, `quality`, `sigma_g_per_kwh`. A time is
a slot's start: ISO 8601 with a time zone, or Unix seconds. A slot lasts until the next one of its
basis, at most for the usual length.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median

from wattline_analyzer.core.emissions import UNKNOWN, PastIntensities, PastSlot
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.times import NoTimeZoneError, parse_date

MOST_G_PER_KWH = 5_000.0
"""Upper limit of plausible intensities, well above any grid."""
_MOST_BYTES = 32 << 20
_MOST_S = 1e11
"""Upper limit of Unix seconds, in the year 5138."""
_NEEDED = ("time", "g_per_kwh")
_OPTIONAL = ("basis", "quality", "sigma_g_per_kwh")
_SHAPE = (
    "expected a CSV with the columns time (ISO 8601 with a time zone, or Unix seconds) and "
    "g_per_kwh"
)
_BASES = ("average", "marginal")
_LONGEST = 1.5
"""Length, in usual slots, from which on the rest of a slot is a gap."""


def read_carbon_file(path: Path) -> tuple[PastIntensities, ...]:
    """Return the intensities of each basis. Raises FetchError."""
    by_basis: defaultdict[str, list[tuple[float, float, str, float | None]]] = defaultdict(list)
    for number, row in enumerate(_rows(path), start=2):
        try:
            point, basis = _point(row)
        except ValueError as error:
            raise FetchError(f"cannot read {path}, line {number}: {error}", _SHAPE) from error
        by_basis[basis].append(point)
    if not by_basis:
        raise FetchError(f"cannot read {path}: it has no rows", _SHAPE)
    return tuple(_past(path, basis, points) for basis, points in sorted(by_basis.items()))


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise FetchError(
                f"cannot read {path}: larger than {_MOST_BYTES >> 20} MiB",
                "reduce it to the days of the run",
            )
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            if not set(_NEEDED) <= set(names):
                columns = ", ".join(names)[:200] or "none"
                raise FetchError(f"cannot read {path}: it has the columns {columns}", _SHAPE)
            return list(reader)
    except OSError as error:
        raise FetchError(
            f"cannot read {path}: {error.strerror}", "check the path and its permissions"
        ) from error
    except (UnicodeError, csv.Error) as error:
        raise FetchError(f"cannot read {path}: not CSV in UTF-8: {error}", _SHAPE) from error


def _point(row: dict[str, str]) -> tuple[tuple[float, float, str, float | None], str]:
    """Return start, intensity, quality and standard deviation of a row, and its basis. Raises
    ValueError.
    """
    basis = (row.get("basis") or "average").strip()
    if basis not in _BASES:
        raise ValueError(f"basis: expected {' or '.join(_BASES)}, not {basis[:40]!r}")
    sigma = (row.get("sigma_g_per_kwh") or "").strip()
    quality = (row.get("quality") or UNKNOWN).strip()[:40]
    grams = _grams(row, "g_per_kwh")
    return (
        parse_slot_time(row["time"] or ""),
        grams,
        quality,
        _grams(row, "sigma_g_per_kwh") if sigma else None,
    ), basis


def _grams(row: dict[str, str], column: str) -> float:
    text = (row.get(column) or "").strip()
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{column}: expected a number, not {text[:40]!r}") from None
    if not 0 <= value <= MOST_G_PER_KWH:
        raise ValueError(f"{column}: expected 0 to {MOST_G_PER_KWH:g} g/kWh, not {text[:40]}")
    return value


def parse_slot_time(text: str) -> float:
    """Return the Unix seconds of ISO 8601 with a time zone, or of Unix seconds. Raises
    ValueError.
    """
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        pass
    else:
        if abs(value) >= _MOST_S:
            raise ValueError(f"time: expected Unix seconds, not {text[:40]} (milliseconds?)")
        if math.isfinite(value):
            return value
    try:
        return parse_date(text)
    except NoTimeZoneError:
        raise ValueError(
            f"time has no time zone: {text[:40]!r}; write {text[:40]}Z, or add +01:00"
        ) from None
    except ValueError:
        raise ValueError(f"time: expected ISO 8601 or Unix seconds, not {text[:40]!r}") from None


def _past(
    path: Path, basis: str, points: list[tuple[float, float, str, float | None]]
) -> PastIntensities:
    points = sorted(points)
    begins_s = [point[0] for point in points]
    if len(set(begins_s)) < len(begins_s):
        raise FetchError(
            f"cannot read {path}: it has two rows of one time and basis ({basis})",
            "remove one of them",
        )
    if len(points) < 2:
        raise FetchError(
            f"cannot read {path}: it has one row of basis {basis}, so the length of a slot is "
            "unknown",
            "add the next slot",
        )
    steps_s = [after - before for before, after in pairwise(begins_s)]
    usual_s = median(steps_s)
    lengths_s = [
        step_s if step_s <= _LONGEST * usual_s else usual_s for step_s in (*steps_s, usual_s)
    ]
    slots = tuple(
        PastSlot(begin_s, begin_s + length_s, grams, quality, sigma)
        for (begin_s, grams, quality, sigma), length_s in zip(points, lengths_s, strict=True)
    )
    return PastIntensities(path.name, "", basis, slots)
