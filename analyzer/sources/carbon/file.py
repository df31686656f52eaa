"""Carbon intensities from a CSV file: `time,g_per_kwh`, and where known `basis`, `quality`, `sigma_g_per_kwh`.

A time is ISO 8601 with its zone, or Unix seconds; it is when a slot begins. A slot lasts until the next one of its
basis, but no longer than the file's usual slot.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

from analyzer.carbon.intensity import UNKNOWN, Past, PastSlot
from analyzer.sources.error import SourceError

MOST_G_PER_KWH = 5_000.0
"""Well above any grid: what lies beyond is not an intensity."""
_MOST_BYTES = 32 << 20
_MOST_S = 1e11
"""Of the year 5138."""
_NEEDED = ("time", "g_per_kwh")
_OPTIONAL = ("basis", "quality", "sigma_g_per_kwh")
_SHAPE = "it is a CSV with the columns time (ISO 8601 with its zone, or Unix seconds) and g_per_kwh"
_BASES = ("average", "marginal")
_LONGEST = 1.5
"""Times the usual slot: what lies behind a longer one is a gap."""


def read(path: Path) -> tuple[Past, ...]:
    """One a basis. Raises SourceError."""
    by_basis: defaultdict[str, list[tuple[float, float, str, float | None]]] = defaultdict(list)
    for number, row in enumerate(_rows(path), start=2):
        try:
            point, basis = _point(row)
        except ValueError as error:
            raise SourceError(f"{path}, line {number}: {error}", _SHAPE) from error
        by_basis[basis].append(point)
    if not by_basis:
        raise SourceError(f"{path} has no rows", _SHAPE)
    return tuple(_past(path, basis, points) for basis, points in sorted(by_basis.items()))


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise SourceError(f"{path} is larger than {_MOST_BYTES >> 20} MiB", "cut it to the days that are needed")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            if not set(_NEEDED) <= set(names):
                raise SourceError(f"{path} has the columns {', '.join(names)[:200] or 'none'}", _SHAPE)
            return list(reader)
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", "is the path right, and may you read it?") from error
    except (UnicodeError, csv.Error) as error:
        raise SourceError(f"{path} is no CSV in UTF-8: {error}", _SHAPE) from error


def _point(row: dict[str, str]) -> tuple[tuple[float, float, str, float | None], str]:
    """Raises ValueError, whose text says which column it is about."""
    basis = (row.get("basis") or "average").strip()
    if basis not in _BASES:
        raise ValueError(f"basis is {' or '.join(_BASES)}, not {basis[:40]!r}")
    sigma = (row.get("sigma_g_per_kwh") or "").strip()
    quality = (row.get("quality") or UNKNOWN).strip()[:40]
    grams = _grams(row, "g_per_kwh")
    return (moment_s(row["time"] or ""), grams, quality, _grams(row, "sigma_g_per_kwh") if sigma else None), basis


def _grams(row: dict[str, str], column: str) -> float:
    text = (row.get(column) or "").strip()
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{column} is no number: {text[:40]!r}") from None
    if not 0 <= value <= MOST_G_PER_KWH:
        raise ValueError(f"{column} is {text[:40]}, which is not between 0 and {MOST_G_PER_KWH:g} g/kWh")
    return value


def moment_s(text: str) -> float:
    """Unix seconds. Raises ValueError for what is neither those nor ISO 8601 with a zone."""
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        pass
    else:
        if abs(value) >= _MOST_S:
            raise ValueError(f"time is {text[:40]}, which is no Unix seconds; are these milliseconds?")
        if math.isfinite(value):
            return value
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"time is neither ISO 8601 nor Unix seconds: {text[:40]!r}") from None
    if moment.tzinfo is None:
        raise ValueError(f"time has no zone: {text[:40]!r}; write it as {text[:40]}Z or with +01:00")
    return moment.timestamp()


def _past(path: Path, basis: str, points: list[tuple[float, float, str, float | None]]) -> Past:
    points = sorted(points)
    begins_s = [point[0] for point in points]
    if len(set(begins_s)) < len(begins_s):
        raise SourceError(f"{path} has two rows of one time and basis ({basis})", "leave one of them")
    if len(points) < 2:
        raise SourceError(f"{path} has one row of basis {basis}", "two show how long a slot is: add the next slot")
    steps_s = [after - before for before, after in pairwise(begins_s)]
    usual_s = median(steps_s)
    lengths_s = [step_s if step_s <= _LONGEST * usual_s else usual_s for step_s in (*steps_s, usual_s)]
    slots = tuple(
        PastSlot(begin_s, begin_s + length_s, grams, quality, sigma)
        for (begin_s, grams, quality, sigma), length_s in zip(points, lengths_s, strict=True)
    )
    return Past(path.name, "", basis, slots)
