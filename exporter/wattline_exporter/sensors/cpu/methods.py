"""Choice of the best available method to read CPU energy.

The methods count the same joules from different origins. So a method is kept while it works; when
another one takes over, each device first gets a poll without a value, so that the two counters are
never subtracted from each other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from wattline_exporter.sensors.readings import Batch, Device, Poll, Source, SourceError, boottime

log = logging.getLogger(__name__)


class CpuSource:
    """Source of CPU energy; `methods` are sources of the same devices by preference, an estimate
    last.
    """

    name = "rapl"

    def __init__(self, methods: Sequence[Source], clock: Callable[[], float] = boottime) -> None:
        self.method: Source | None = None
        """Method of the last reading."""
        self.refused: dict[str, SourceError] = {}
        """Last errors of the preferred methods, by name."""
        self._methods = tuple(methods)
        self._clock = clock
        self._devices: dict[Device, bool] = {}
        self._last_s: float | None = None

    def read(self) -> Batch:
        began_s = self._clock()
        first = [self.method] if self.method and any(self._devices.values()) else []
        errors: dict[str, SourceError] = {}
        for method in (*first, *(one for one in self._methods if one not in first)):
            try:
                batch = method.read()
            except SourceError as error:
                errors[method.name] = error
                continue
            if not first or errors:
                self.refused = errors
            return self._use(method, batch, began_s)
        self.refused = errors
        raise _unavailable(list(errors.items()))

    def _use(self, method: Source, batch: Batch, began_s: float) -> Batch:
        blanks: tuple[Poll, ...] = ()
        if method is not self.method:
            blanks = tuple(Poll(device, began_s, began_s) for device in self._devices)
            self._log_change(method, began_s)
            self.method = method
            self._devices = {}
        self._devices |= {poll.device: poll.counter_j is not None for poll in batch.polls}
        self._last_s = self._clock()
        return Batch(batch.readings, (*blanks, *batch.polls), batch.problems)

    def _log_change(self, method: Source, now_s: float) -> None:
        if self.refused or self.method:
            reasons = "; ".join(
                f"{name} unavailable: {error.cause}" for name, error in self.refused.items()
            )
            lost = (
                f"; the energy of the last {now_s - self._last_s:.1f} s is not counted"
                if self._last_s
                else ""
            )
            log.info(
                "source=%s uses %s%s (%s)",
                self.name,
                method.name,
                lost,
                reasons or "it has recovered",
            )


def _unavailable(errors: list[tuple[str, SourceError]]) -> SourceError:
    """Return all causes, with the remedies of methods that only lack permission, else of the best
    method.
    """
    (_, first), *others = errors
    cause = "; ".join([first.cause, *(f"{name}: {error.cause}" for name, error in others)])
    forbidden = [
        error.remedy for _, error in errors if isinstance(error.__cause__, PermissionError)
    ]
    return SourceError(cause, "; or: ".join(forbidden or [first.remedy]))
