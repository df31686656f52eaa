"""What of the history one server has not acknowledged yet: a row in the history's own file, changed along with it."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, NamedTuple

_MOST = (1 << 63) - 1
"""SQLite's numbers end there."""


class DamagedPositionError(ValueError):
    """The row does not say how far the server is."""


@dataclass(frozen=True, slots=True)
class PushPosition:
    """The last sample that is done with, and how many were; `moves` counts how often the clock moved what is kept.

    Up to `sure_ms` and `sure_id` the server has it for good; what it took after that is lost where it is killed. What
    is sent again is counted once: `counted_ms` and `counted_id` are the last sample that was.
    """

    t_ms: int = 0
    series_id: int = 0
    sure_ms: int = 0
    sure_id: int = 0
    counted_ms: int = 0
    counted_id: int = 0
    accepted: int = 0
    refused: int = 0
    dropped: int = 0
    moves: int = 0

    @property
    def done(self) -> tuple[int, int]:
        """Time and series, by which samples are ordered."""
        return self.t_ms, self.series_id

    @property
    def sure(self) -> tuple[int, int]:
        return self.sure_ms, self.sure_id

    @property
    def counted(self) -> tuple[int, int]:
        return max(self.done, (self.counted_ms, self.counted_id))

    def text(self) -> str:
        return json.dumps(asdict(self))


def parse_position(text: bytes) -> PushPosition:
    """What another version added is left out, and what it lacks is as at the start. Raises DamagedError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DamagedPositionError(f"{error}") from error
    if not isinstance(found, dict) or not {"t_ms", "series_id"} <= found.keys():
        raise DamagedPositionError("t_ms and series_id are not in it")
    known = {field.name: found[field.name] for field in fields(PushPosition) if field.name in found}
    for name, value in known.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
            raise DamagedPositionError(f"{name} is no number that it can have")
    if not {"sure_ms", "sure_id"} <= known.keys():
        known |= {"sure_ms": known["t_ms"], "sure_id": known["series_id"]}
    return PushPosition(**known)


PushOutcome = Literal["accepted", "refused"]
log = logging.getLogger(__name__)


class QueuedSample(NamedTuple):
    t_ms: int
    series_id: int
    value: float


@dataclass(frozen=True, slots=True)
class PushBatch:
    """Samples in the order of time and series; `labels` are those of each series, `__name__` among them."""

    samples: list[QueuedSample]
    labels: dict[int, dict[str, str]]
    position: PushPosition
    """As it was when this was read."""


class PushQueueState(NamedTuple):
    position: PushPosition
    samples: int
    oldest_ms: int | None
    """None where nothing waits."""


class PushQueue:
    """All methods block, and are called in the history's thread. `url` names the server."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._key = f"push {url}"
        self._damaged: set[int] = set()
        """Series of which that was said."""

    def position(self) -> PushPosition:
        """One that is damaged is as if nothing had been sent: so nothing is left out."""
        try:
            return self._stored()
        except DamagedPositionError:
            return PushPosition()

    def _stored(self) -> PushPosition:
        row = self._connection.execute("SELECT CAST(value AS BLOB) FROM meta WHERE key = ?", (self._key,)).fetchone()
        return parse_position(row[0]) if row else PushPosition()

    def mend(self) -> None:
        """Says whether the position is damaged, and begins anew then."""
        try:
            self._stored()
        except DamagedPositionError as error:
            log.warning("in the history it is damaged how far the %s was: %s; all is sent again", self._key, error)
            with self._connection:
                self._save(PushPosition())

    def waiting(self, most: int) -> PushQueueState:
        """What is not acknowledged; counted up to `most`, since that takes a second for some millions."""
        position = self.position()
        samples, oldest_ms = self._connection.execute(
            "SELECT count(*), min(t_ms) FROM (SELECT t_ms FROM samples WHERE (t_ms, series_id) > (?, ?) LIMIT ?)",
            (*position.done, most),
        ).fetchone()
        return PushQueueState(position, samples, oldest_ms)

    def oldest(self, until_ms: int, most: int) -> PushBatch:
        """The oldest samples that are not acknowledged, none later than `until_ms`, at most so many."""
        position = self.position()
        rows = self._connection.execute(
            "SELECT t_ms, series_id, value FROM samples WHERE (t_ms, series_id) > (?, ?) AND t_ms <= ?"
            " ORDER BY t_ms, series_id LIMIT ?",
            (*position.done, until_ms, most),
        )
        samples = [QueuedSample(*row) for row in rows]
        named = self._connection.execute(
            "SELECT id, name, CAST(labels AS BLOB) FROM series WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list({sample.series_id for sample in samples})),),
        )
        return PushBatch(samples, {row[0]: labels for row in named if (labels := self._labels(*row))}, position)

    def _labels(self, series_id: int, name: str, text: bytes) -> dict[str, str] | None:
        """None where they are damaged: its samples are left out then."""
        try:
            return {**json.loads(text), "__name__": name}
        except (ValueError, TypeError):
            if series_id not in self._damaged:
                self._damaged.add(series_id)
                log.warning("in the history the labels of a series of %s are damaged: it is not pushed", name)
            return None

    def acknowledge(
        self, part: list[QueuedSample], moves: int, outcome: PushOutcome, sure: PushPosition | None = None
    ) -> PushPosition:
        """All up to the part's last is done with; where the clock was set since it was read, it is to be sent anew.

        `sure`: up to there the server has it for good; None where it has for good what it takes.
        """
        position = self.position()
        if position.moves == moves:
            new = sum(sample[:2] > position.counted for sample in part)
            counts = {outcome: getattr(position, outcome) + new}
            position = replace(position, t_ms=part[-1].t_ms, series_id=part[-1].series_id, **counts)
            if sure is None:
                position = replace(position, sure_ms=position.t_ms, sure_id=position.series_id)
            elif sure.moves == moves:
                position = replace(position, sure_ms=sure.t_ms, sure_id=sure.series_id)
        with self._connection:
            self._save(position)
        return position

    def prove(self, sure: PushPosition) -> PushPosition:
        """Up to there the server has it for good."""
        position = self.position()
        if sure.moves == position.moves:
            position = replace(position, sure_ms=sure.t_ms, sure_id=sure.series_id)
            with self._connection:
                self._save(position)
        return position

    def go_back(self) -> PushPosition:
        """What the server may have lost is to be sent again."""
        position = self.position()
        if position.sure < position.done:
            counted_ms, counted_id = position.counted
            position = replace(
                position,
                t_ms=position.sure_ms,
                series_id=position.sure_id,
                counted_ms=counted_ms,
                counted_id=counted_id,
            )
            with self._connection:
                self._save(position)
        return position

    # -- called by the history within its own transactions

    def move(self, begin_ms: int, step_ms: int) -> None:
        """The samples since `begin_ms` were moved, over those that were in their new place."""
        position = self.position()
        t_ms, series_id = _moved(position.done, begin_ms, step_ms)
        sure_ms, sure_id = _moved(position.sure, begin_ms, step_ms)
        self._save(
            replace(
                position,
                t_ms=t_ms,
                series_id=series_id,
                sure_ms=sure_ms,
                sure_id=sure_id,
                counted_ms=0,
                counted_id=0,
                moves=position.moves + 1,
            )
        )

    def precede(self, t_ms: int) -> None:
        """What is written next is at `t_ms`: after a clock that was ahead, that is where to go on."""
        position = self.position()
        if position.t_ms >= t_ms:
            self._save(
                replace(
                    position,
                    t_ms=t_ms - 1,
                    series_id=0,
                    sure_ms=min(position.sure_ms, t_ms - 1),
                    sure_id=0,
                    counted_ms=0,
                    counted_id=0,
                    moves=position.moves + 1,
                )
            )

    def drop(self, before_ms: int) -> None:
        """Samples before that are about to be deleted, those that are not acknowledged among them."""
        position = self.position()
        if position.t_ms >= before_ms:
            return
        lost = self._connection.execute(
            "SELECT count(*) FROM samples WHERE (t_ms, series_id) > (?, ?) AND t_ms < ?",
            (*position.counted, before_ms),
        ).fetchone()[0]
        if lost:
            self._save(replace(position, dropped=position.dropped + lost))

    def _save(self, position: PushPosition) -> None:
        row = (self._key, position.text())
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)


def _moved(done: tuple[int, int], begin_ms: int, step_ms: int) -> tuple[int, int]:
    if done[0] >= begin_ms:
        return done[0] + step_ms, done[1]
    if done[0] >= begin_ms + step_ms:
        return begin_ms + step_ms - 1, 0
    return done


def split_samples(part: list[QueuedSample]) -> tuple[list[QueuedSample], list[QueuedSample]]:
    """By time as far as there are several, since servers refuse what is old; of one time by series."""
    middle = len(part) // 2
    if part[0].t_ms != part[-1].t_ms:
        later = [at for at in range(1, len(part)) if part[at].t_ms != part[at - 1].t_ms]
        middle = min(later, key=lambda at: abs(at - middle))
    return part[:middle], part[middle:]
