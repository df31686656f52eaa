"""Series of any length in bounded memory: the latest samples in memory, the earlier ones in a
temporary file.
"""

from __future__ import annotations

import math
import sqlite3
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import IO

import numpy as np

from wattline_analyzer.core.integrate import Integral, integrate_within
from wattline_analyzer.core.samples import FloatArray, Samples
from wattline_analyzer.core.streaming import median

_PART = 8_192
_SAMPLE_BYTES = 16


class Spool:
    """Store of parts of series, of `part` samples each: in a temporary file in the folder, in
    memory without one.
    """

    def __init__(self, folder: Path | None = None, part: int = _PART) -> None:
        self.folder = folder
        self.part = part
        self._file: IO[bytes] = BytesIO()
        if folder:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # see close

    def close(self) -> None:
        self._file.close()

    def store(self, samples: FloatArray) -> int:
        """Append rows of time and value, and return their place."""
        place = self._file.seek(0, 2)
        self._file.write(samples.tobytes())
        return place

    def load(self, place: int, count: int) -> FloatArray:
        self._file.seek(place)
        return np.frombuffer(self._file.read(_SAMPLE_BYTES * count)).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class _Part:
    place: int
    count: int
    first_s: float
    last: tuple[float, float]


class StoredSamples:
    """Finite samples of a series, in the order in which they were added."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self._latest = array("d")
        self._limit = 2 * spool.part
        self._parts: list[_Part] = []
        self._rising = True

    def __len__(self) -> int:
        return sum(part.count for part in self._parts) + len(self._latest) // 2

    def add(self, t_s: float, value: float) -> None:
        self._latest.extend((t_s, value))
        if len(self._latest) >= self._limit:
            self._store()

    def _store(self) -> None:
        samples = np.array(self._latest).reshape(-1, 2)
        samples = samples[np.isfinite(samples).all(axis=1)]
        self._latest = array("d")
        if not len(samples):
            return
        t = samples[:, 0]
        self._rising &= bool((np.diff(t) > 0).all()) and (
            not self._parts or t[0] > self._parts[-1].last[0]
        )
        last = float(t[-1]), float(samples[-1, 1])
        self._parts.append(_Part(self.spool.store(samples), len(samples), float(t[0]), last))

    @property
    def rising(self) -> bool:
        """True if the times rise strictly."""
        self._store()
        return self._rising

    @property
    def ends_s(self) -> tuple[float, float]:
        """Times of the first and of the last sample."""
        self._store()
        return self._parts[0].first_s, self._parts[-1].last[0]

    def parts(self, start_s: float = -math.inf, end_s: float = math.inf) -> Iterator[Samples]:
        """Yield the parts that touch [start_s, end_s]; each begins with the last sample of the one
        before it.
        """
        self._store()
        before: tuple[tuple[float, float], ...] = ()
        for part in self._parts:
            if part.last[0] >= start_s and (before[0][0] if before else part.first_s) <= end_s:
                rows = np.vstack([*before, self.spool.load(part.place, part.count)])
                yield Samples(*np.ascontiguousarray(rows.T))
            before = (part.last,)

    @cached_property
    def spacing_s(self) -> float | None:
        """Median time between samples; None for fewer than two."""
        return self.spacing_between_s(-math.inf, math.inf)

    def blocks(self) -> Iterator[FloatArray]:
        """Yield all rows of time and value in the order in which they were added."""
        self._store()
        for part in self._parts:
            yield self.spool.load(part.place, part.count)

    def spacing_between_s(self, start_s: float, end_s: float) -> float | None:
        """Return the median time between the samples in [start_s, end_s]; None for fewer than
        two.
        """
        return median(
            lambda: (np.diff(part.between(start_s, end_s).t) for part in self.parts(start_s, end_s))
        )

    def integral(self, start_s: float, end_s: float, longest_s: float) -> Integral:
        """Return the integral over [start_s, end_s] without the times of more than `longest_s`
        between two samples.
        """
        found = [
            integrate_within(part, start_s, end_s, longest_s) for part in self.parts(start_s, end_s)
        ]
        return Integral(
            math.fsum(one.energy_j for one in found), math.fsum(one.covered_s for one in found)
        )

    def highest(self, start_s: float, end_s: float) -> float | None:
        """Return the highest value in [start_s, end_s], None without a sample."""
        inside = (part.between(start_s, end_s).value for part in self.parts(start_s, end_s))
        return max((float(value.max()) for value in inside if len(value)), default=None)


def stored(samples: Samples) -> StoredSamples:
    """Return the samples as a series in memory."""
    found = StoredSamples(Spool())
    for t_s, value in zip(samples.t.tolist(), samples.value.tolist(), strict=True):
        found.add(t_s, value)
    return found


@dataclass(frozen=True, slots=True)
class OrderedSamples:
    """Samples by time; of several with one time, the first is kept.

    `different` counts samples with the time of another one and another value, `different_s` is the
    first such time; `overlap_s` is the first time at which two rising parts of the series overlap
    with different samples.
    """

    samples: StoredSamples
    different: int = 0
    different_s: float | None = None
    overlap_s: float | None = None


_TABLE = """CREATE TABLE samples (t REAL PRIMARY KEY, value REAL, parts INTEGER,
    different INTEGER, starts INTEGER,
    ends INTEGER DEFAULT 0) WITHOUT ROWID"""
_INSERT = """INSERT INTO samples (t, value, parts, different, starts) VALUES (?1, ?2, ?3, 0, ?4)
    ON CONFLICT DO UPDATE
    SET parts = parts + ?3, different = different + (value != ?2), starts = starts + ?4"""


def merge_by_time(series: Sequence[StoredSamples]) -> OrderedSamples:
    """Return the samples of all series by time, with the times at which they contradict each
    other.
    """
    if len(series) == 1 and series[0].rising:
        return OrderedSamples(series[0])
    found = StoredSamples(series[0].spool)
    with (
        tempfile.TemporaryDirectory(dir=found.spool.folder) as folder,
        closing(sqlite3.connect(Path(folder, "sorted.sqlite"), isolation_level=None)) as database,
    ):
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(_TABLE)
        for one in series:
            _insert(database, one)
        different = 0
        parts_open = 0
        different_s = None
        overlap_s = None
        for t_s, value, parts, others, starts, ends in database.execute(
            "SELECT * FROM samples ORDER BY t"
        ):
            found.add(t_s, value)
            parts_open += starts
            different += others
            if others and different_s is None:
                different_s = t_s
            if overlap_s is None and parts_open > 1 and (parts < parts_open or others):
                overlap_s = t_s
            parts_open -= ends
    return OrderedSamples(found, different, different_s, overlap_s)


def _insert(database: sqlite3.Connection, series: StoredSamples) -> None:
    """Insert the samples with the starts and ends of the parts whose times rise."""
    last_s = math.inf
    for block in series.blocks():
        steps_s = np.diff(block[:, 0], prepend=last_s)
        starts = steps_s < 0
        rows = zip(*block.T.tolist(), (steps_s != 0).tolist(), starts.tolist(), strict=True)
        database.executemany(_INSERT, rows)
        befores = np.concatenate([[last_s], block[:-1, 0]])[starts]
        database.executemany(
            "UPDATE samples SET ends = ends + 1 WHERE t = ?", ((t_s,) for t_s in befores.tolist())
        )
        last_s = float(block[-1, 0])
    database.execute("UPDATE samples SET ends = ends + 1 WHERE t = ?", (last_s,))
