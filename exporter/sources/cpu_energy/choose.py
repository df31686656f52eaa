"""The energy of the CPU by the best way that this node allows: which one, and why not a better one.

Two ways count the same joules from different origins. So a counter, once read, is kept for as long as it answers, and
where another way takes over each device is first read once without a value: what the line of its energy has seen of the
one counter is then never set against the other's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from exporter.model import Batch, Device, Poll, Source, SourceError, boottime

log = logging.getLogger(__name__)


class CpuSource:
    """`ways` stand in the order of preference, an estimate last; each is a source of the same devices."""

    name = "rapl"

    def __init__(self, ways: Sequence[Source], clock: Callable[[], float] = boottime) -> None:
        self.way: Source | None = None
        """The one that gave the last reading."""
        self.refused: dict[str, SourceError] = {}
        """Why those before it were not taken, by name; as of when they were last asked."""
        self._ways = tuple(ways)
        self._clock = clock
        self._devices: dict[Device, bool] = {}
        self._last_s: float | None = None

    def read(self) -> Batch:
        began_s = self._clock()
        first = [self.way] if self.way and any(self._devices.values()) else []
        errors: dict[str, SourceError] = {}
        for way in (*first, *(way for way in self._ways if way not in first)):
            try:
                batch = way.read()
            except SourceError as error:
                errors[way.name] = error
                continue
            if not first or errors:
                self.refused = errors
            return self._taken(way, batch, began_s)
        self.refused = errors
        raise _none(list(errors.items()))

    def _taken(self, way: Source, batch: Batch, began_s: float) -> Batch:
        blanks: tuple[Poll, ...] = ()
        if way is not self.way:
            blanks = tuple(Poll(device, began_s, began_s) for device in self._devices)
            self._say(way, began_s)
            self.way = way
            self._devices = {}
        self._devices |= {poll.device: poll.counter_j is not None for poll in batch.polls}
        self._last_s = self._clock()
        return Batch(batch.readings, (*blanks, *batch.polls), batch.problems)

    def _say(self, way: Source, now_s: float) -> None:
        if self.refused or self.way:
            reasons = "; ".join(f"not by {name}: {error.cause}" for name, error in self.refused.items())
            lost = f"; what was drawn in the {now_s - self._last_s:.1f} s before is not counted" if self._last_s else ""
            log.info("source=%s is read by %s%s (%s)", self.name, way.name, lost, reasons or "it answers now")


def _none(errors: list[tuple[str, SourceError]]) -> SourceError:
    """All causes, and the remedy: of what is there and only forbidden, else of the best way."""
    (_, first), *others = errors
    cause = "; ".join([first.cause, *(f"nor by {name}: {error.cause}" for name, error in others)])
    forbidden = [error.remedy for _, error in errors if isinstance(error.__cause__, PermissionError)]
    return SourceError(cause, "; or: ".join(forbidden or [first.remedy]))
