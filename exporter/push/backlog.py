"""What of the history one server has not acknowledged yet: a row in the history's own file, changed along with it."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

Outcome = Literal["accepted", "refused"]


class Sample(NamedTuple):
    t_ms: int
    series_id: int
    value: float


@dataclass(frozen=True, slots=True)
class Position:
    """The last sample that is done with, and how many were; `moves` counts how often the clock moved what is kept.

    What is sent again is counted once: `counted_ms` and `counted_id` are the last sample that was.
    """

    t_ms: int = 0
    series_id: int = 0
    counted_ms: int = 0
    counted_id: int = 0
    accepted: int = 0
    refused: int = 0
    dropped: int = 0
    moves: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples in the order of time and series; `labels` are those of each series, `__name__` among them."""

    samples: list[Sample]
    labels: dict[int, dict[str, str]]
    moves: int


class Backlog:
    """All methods block, and are called in the history's thread. `url` names the server."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._key = f"push {url}"

    def position(self) -> Position:
        row = self._connection.execute("SELECT value FROM meta WHERE key = ?", (self._key,)).fetchone()
        return Position(**json.loads(row[0])) if row else Position()

    def oldest(self, until_ms: int, most: int) -> Batch:
        """The oldest samples that are not acknowledged, none later than `until_ms`, at most so many."""
        position = self.position()
        rows = self._connection.execute(
            "SELECT t_ms, series_id, value FROM samples WHERE (t_ms, series_id) > (?, ?) AND t_ms <= ?"
            " ORDER BY t_ms, series_id LIMIT ?",
            (position.t_ms, position.series_id, until_ms, most),
        )
        samples = [Sample(*row) for row in rows]
        named = self._connection.execute(
            "SELECT id, name, labels FROM series WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list({sample.series_id for sample in samples})),),
        )
        labels = {series_id: {**json.loads(text), "__name__": name} for series_id, name, text in named}
        return Batch(samples, labels, position.moves)

    def acknowledge(self, part: list[Sample], moves: int, outcome: Outcome) -> Position:
        """All up to the part's last is done with; where the clock was set since it was read, it is to be sent anew."""
        position = self.position()
        if position.moves == moves:
            counted = (position.counted_ms, position.counted_id)
            new = sum(sample[:2] > counted for sample in part)
            position = replace(position, t_ms=part[-1].t_ms, series_id=part[-1].series_id)
            if outcome == "accepted":
                position = replace(position, accepted=position.accepted + new)
            else:
                position = replace(position, refused=position.refused + new)
        with self._connection:
            self._save(position)
        return position

    def go_back(self, to: Position) -> Position:
        """What was acknowledged since then is to be sent again."""
        position = self.position()
        if position.moves == to.moves:
            counted = max((position.t_ms, position.series_id), (position.counted_ms, position.counted_id))
            position = replace(
                position, t_ms=to.t_ms, series_id=to.series_id, counted_ms=counted[0], counted_id=counted[1]
            )
        with self._connection:
            self._save(position)
        return position

    # -- called by the history within its own transactions

    def move(self, begin_ms: int, step_ms: int) -> None:
        """The samples since `begin_ms` were moved, over those that were in their new place."""
        position = self.position()
        if position.t_ms >= begin_ms:
            position = replace(position, t_ms=position.t_ms + step_ms)
        elif position.t_ms >= begin_ms + step_ms:
            position = replace(position, t_ms=begin_ms + step_ms - 1, series_id=0)
        self._save(replace(position, moves=position.moves + 1, counted_ms=0, counted_id=0))

    def precede(self, t_ms: int) -> None:
        """What is written next is at `t_ms`: after a clock that was ahead, that is where to go on."""
        position = self.position()
        if position.t_ms >= t_ms:
            position = replace(position, t_ms=t_ms - 1, series_id=0, counted_ms=0, counted_id=0)
            self._save(replace(position, moves=position.moves + 1))

    def drop(self, before_ms: int) -> None:
        """Samples before that are about to be deleted, those that are not acknowledged among them."""
        position = self.position()
        if position.t_ms >= before_ms:
            return
        lost = self._connection.execute(
            "SELECT count(*) FROM samples WHERE (t_ms, series_id) > (?, ?) AND t_ms < ?",
            (position.t_ms, position.series_id, before_ms),
        ).fetchone()[0]
        if lost:
            self._save(replace(position, dropped=position.dropped + lost))

    def _save(self, position: Position) -> None:
        row = (self._key, json.dumps(asdict(position)))
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)
