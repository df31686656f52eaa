"""How far one server is with the history, and how that is written in a row of the history's file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

_MOST = (1 << 63) - 1
"""SQLite's numbers end there."""


class DamagedError(ValueError):
    """The row does not say how far the server is."""


@dataclass(frozen=True, slots=True)
class Position:
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


def parsed(text: bytes) -> Position:
    """What another version added is left out, and what it lacks is as at the start. Raises DamagedError."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DamagedError(f"{error}") from error
    if not isinstance(found, dict) or not {"t_ms", "series_id"} <= found.keys():
        raise DamagedError("t_ms and series_id are not in it")
    known = {field.name: found[field.name] for field in fields(Position) if field.name in found}
    for name, value in known.items():
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
            raise DamagedError(f"{name} is no number that it can have")
    if not {"sure_ms", "sure_id"} <= known.keys():
        known |= {"sure_ms": known["t_ms"], "sure_id": known["series_id"]}
    return Position(**known)
