"""Queue of samples to push to one server: a row of the history file, changed with it."""

from __future__ import annotations

import json
import logging
import sqlite3
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice
from typing import Literal, NamedTuple

from wattline.contract.compact_history import samples_in_order

_MOST = (1 << 63) - 1
"""Largest integer of SQLite."""
_FORMER_NAMES = {"sure_ms": "durable_ms", "sure_id": "durable_id"}
"""Names of fields in positions that earlier versions stored."""


class DamagedPositionError(ValueError):
    """A stored position that cannot be read."""


@dataclass(frozen=True, slots=True)
class PushPosition:
    """Progress of one server: its last accepted or refused sample, and counts of samples.

    `moves` counts how often samples were moved after a clock step. Samples up to `durable_ms` and
    `durable_id` are durable on the server; a server that is killed may lose later ones. Samples
    that are sent again are counted once: `counted_ms` and `counted_id` are the last counted sample.
    """

    t_ms: int = 0
    series_id: int = 0
    durable_ms: int = 0
    durable_id: int = 0
    counted_ms: int = 0
    counted_id: int = 0
    accepted: int = 0
    refused: int = 0
    dropped: int = 0
    moves: int = 0

    @property
    def done(self) -> tuple[int, int]:
        """Time and series of the last sample, by which samples are ordered."""
        return self.t_ms, self.series_id

    @property
    def durable(self) -> tuple[int, int]:
        return self.durable_ms, self.durable_id

    @property
    def counted(self) -> tuple[int, int]:
        return max(self.done, (self.counted_ms, self.counted_id))

    def text(self) -> str:
        return json.dumps(asdict(self))


def parse_position(text: bytes) -> PushPosition:
    """Return the position; unknown fields are ignored, missing ones get defaults. Raises
    DamagedPositionError.
    """
    try:
        stored = json.loads(text)
    except ValueError as error:
        raise DamagedPositionError(f"{error}") from error
    if not isinstance(stored, dict) or not {"t_ms", "series_id"} <= stored.keys():
        raise DamagedPositionError("t_ms and series_id are missing")
    stored = {_FORMER_NAMES.get(name, name): value for name, value in stored.items()}
    values = {
        field.name: stored[field.name] for field in fields(PushPosition) if field.name in stored
    }
    for name, value in values.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
            raise DamagedPositionError(f"{name} is out of range")
    if not {"durable_ms", "durable_id"} <= values.keys():
        values |= {"durable_ms": values["t_ms"], "durable_id": values["series_id"]}
    return PushPosition(**values)


PushOutcome = Literal["accepted", "refused"]
log = logging.getLogger(__name__)


class QueuedSample(NamedTuple):
    t_ms: int
    series_id: int
    value: float


@dataclass(frozen=True, slots=True)
class PushBatch:
    """Samples in order of time and series; `labels` of each series include `__name__`."""

    samples: list[QueuedSample]
    labels: dict[int, dict[str, str]]
    position: PushPosition
    """Position at the time of reading."""


class PushQueueState(NamedTuple):
    position: PushPosition
    samples: int
    oldest_ms: int | None
    """Time of the oldest queued sample; None if the queue is empty."""


class PushQueue:
    """Queue of the server with this URL. All methods block, and run in the history's thread."""

    def __init__(self, connection: sqlite3.Connection, url: str) -> None:
        self._connection = connection
        self._key = f"push {url}"
        self._damaged: set[int] = set()
        """Damaged series that have been logged, so that each is logged once."""

    def position(self) -> PushPosition:
        """Return the position. For a damaged one, return the start of the history, so that no
        sample is lost.
        """
        try:
            return self._stored()
        except DamagedPositionError:
            return PushPosition()

    def _stored(self) -> PushPosition:
        row = self._connection.execute(
            "SELECT CAST(value AS BLOB) FROM meta WHERE key = ?", (self._key,)
        ).fetchone()
        return parse_position(row[0]) if row else PushPosition()

    def reset_damaged(self) -> None:
        """Log a damaged position and reset it."""
        try:
            self._stored()
        except DamagedPositionError as error:
            log.warning(
                "the stored position of %s in the history is damaged: %s; all samples are sent "
                "again",
                self._key,
                error,
            )
            with self._connection:
                self._save(PushPosition())

    def state(self, most: int) -> PushQueueState:
        """Return the unacknowledged samples, counted up to `most` since counting takes a second per
        million.
        """
        position = self.position()
        counted = [
            t_ms
            for t_ms, _, _ in islice(
                samples_in_order(self._connection, position.done, _MOST - 1), most
            )
        ]
        return PushQueueState(position, len(counted), min(counted, default=None))

    def oldest(self, until_ms: int, most: int) -> PushBatch:
        """Return the oldest unacknowledged samples, at most `most`, up to `until_ms`."""
        position = self.position()
        rows = samples_in_order(self._connection, position.done, until_ms)
        samples = [QueuedSample(*row) for row in islice(rows, most)]
        series = self._connection.execute(
            "SELECT id, name, CAST(labels AS BLOB) FROM series WHERE id IN (SELECT value FROM "
            "json_each(?))",
            (json.dumps(list({sample.series_id for sample in samples})),),
        )
        return PushBatch(
            samples, {row[0]: labels for row in series if (labels := self._labels(*row))}, position
        )

    def _labels(self, series_id: int, name: str, text: bytes) -> dict[str, str] | None:
        """Return the labels of a series, None if they are damaged: its samples are skipped."""
        try:
            return {**json.loads(text), "__name__": name}
        except (ValueError, TypeError):
            if series_id not in self._damaged:
                self._damaged.add(series_id)
                log.warning(
                    "labels of a series of %s in the history are damaged; the series is not pushed",
                    name,
                )
            return None

    def acknowledge(
        self,
        part: list[QueuedSample],
        moves: int,
        outcome: PushOutcome,
        durable: PushPosition | None = None,
    ) -> PushPosition:
        """Advance to the last sample of `part`, unless samples were moved since it was read: then
        they are sent again.

        `durable`: last sample that is durable on the server; None if all that it accepts is
        durable.
        """
        position = self.position()
        if position.moves == moves:
            new = sum(sample[:2] > position.counted for sample in part)
            counts = {outcome: getattr(position, outcome) + new}
            position = replace(position, t_ms=part[-1].t_ms, series_id=part[-1].series_id, **counts)
            if durable is None:
                position = replace(
                    position, durable_ms=position.t_ms, durable_id=position.series_id
                )
            elif durable.moves == moves:
                position = replace(position, durable_ms=durable.t_ms, durable_id=durable.series_id)
        with self._connection:
            self._save(position)
        return position

    def mark_durable(self, durable: PushPosition) -> PushPosition:
        """Note that samples up to `durable` are durable on the server."""
        position = self.position()
        if durable.moves == position.moves:
            position = replace(position, durable_ms=durable.t_ms, durable_id=durable.series_id)
            with self._connection:
                self._save(position)
        return position

    def rewind(self) -> PushPosition:
        """Go back to the last durable sample, since the server may have lost later ones."""
        position = self.position()
        if position.durable < position.done:
            counted_ms, counted_id = position.counted
            position = replace(
                position,
                t_ms=position.durable_ms,
                series_id=position.durable_id,
                counted_ms=counted_ms,
                counted_id=counted_id,
            )
            with self._connection:
                self._save(position)
        return position

    # -- called by the history inside its transactions

    def move(self, begin_ms: int, step_ms: int) -> None:
        """Follow a move of the samples since `begin_ms` by `step_ms`, which overwrote those in
        their new place.
        """
        position = self.position()
        t_ms, series_id = _shift(position.done, begin_ms, step_ms)
        durable_ms, durable_id = _shift(position.durable, begin_ms, step_ms)
        self._save(
            replace(
                position,
                t_ms=t_ms,
                series_id=series_id,
                durable_ms=durable_ms,
                durable_id=durable_id,
                counted_ms=0,
                counted_id=0,
                moves=position.moves + 1,
            )
        )

    def rewind_before(self, t_ms: int) -> None:
        """Go back before `t_ms`, the next sample: the clock was ahead before."""
        position = self.position()
        if position.t_ms >= t_ms:
            self._save(
                replace(
                    position,
                    t_ms=t_ms - 1,
                    series_id=0,
                    durable_ms=min(position.durable_ms, t_ms - 1),
                    durable_id=0,
                    counted_ms=0,
                    counted_id=0,
                    moves=position.moves + 1,
                )
            )

    def drop(self, before_ms: int) -> None:
        """Count the unacknowledged samples before `before_ms`, which are about to be deleted."""
        position = self.position()
        if position.t_ms >= before_ms:
            return
        lost = sum(1 for _ in samples_in_order(self._connection, position.counted, before_ms - 1))
        if lost:
            self._save(replace(position, dropped=position.dropped + lost))

    def _save(self, position: PushPosition) -> None:
        row = (self._key, position.text())
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)


def _shift(sample: tuple[int, int], begin_ms: int, step_ms: int) -> tuple[int, int]:
    if sample[0] >= begin_ms:
        return sample[0] + step_ms, sample[1]
    if sample[0] >= begin_ms + step_ms:
        return begin_ms + step_ms - 1, 0
    return sample


def split_samples(part: list[QueuedSample]) -> tuple[list[QueuedSample], list[QueuedSample]]:
    """Return two halves of a batch, divided by time if possible, since servers refuse old samples,
    else by series.
    """
    middle = len(part) // 2
    if part[0].t_ms != part[-1].t_ms:
        later = [at for at in range(1, len(part)) if part[at].t_ms != part[at - 1].t_ms]
        middle = min(later, key=lambda at: abs(at - middle))
    return part[:middle], part[middle:]
