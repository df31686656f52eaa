"""Progress bar of slow fetches on a terminal's stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from exporter.contract.metrics import Metric

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[str, float], None]
"""Callback with the name and the progress of a fetch, from 0 to 1; 1 ends it."""
SHOWN_AFTER_S = 1.0
_APART_S = 0.5
"""Maximum time between two fetches of one sequence: a live table polls once a second."""


def no_progress(_what: str, _ratio: float) -> None:
    pass


def metric_names(metrics: Sequence[Metric]) -> str:
    """Return a short name of the metrics."""
    first = metrics[0].name.removeprefix("wattline_")
    return first if len(metrics) == 1 else f"{first} and {len(metrics) - 1} more"


class ProgressBar:
    """Progress callback that draws a bar on a terminal, after the first second of a sequence of fetches.

    Between two fetches the bar is removed, so that other output can be printed.
    """

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._begun_s = 0.0
        self._over_s: float | None = float("-inf")
        self._drawn: RichProgress | None = None

    def __call__(self, what: str, ratio: float) -> None:
        if not self._stream.isatty():
            return
        now_s = self._now()
        if self._over_s is not None and now_s > self._over_s + _APART_S:
            self._begun_s = now_s
        self._over_s = now_s if ratio >= 1 else None
        if ratio >= 1:
            self._clear()
        elif now_s >= self._begun_s + SHOWN_AFTER_S:
            self._draw(what, ratio)

    def _draw(self, what: str, ratio: float) -> None:
        if self._drawn is None:
            self._drawn = _drawing(self._stream)
            self._drawn.add_task(what, total=1.0)
            self._drawn.start()
        self._drawn.update(self._drawn.task_ids[0], description=what, completed=ratio)
        self._drawn.refresh()

    def _clear(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def _drawing(stream: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        *(TextColumn("fetching {task.description}"), BarColumn(), TaskProgressColumn()),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
