"""How far a fetch is: a bar on a terminal's stderr, once there is something to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TextIO

from exporter.contract.metrics import Metric

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[str, float], None]
"""Told what is being fetched, and which part of it is there, from 0 to 1; with 1 it is over."""
SHOWN_AFTER_S = 1.0
_APART_S = 0.5
"""Fetches that are further apart have something else between them: a live table asks once a second."""


def untold(_what: str, _ratio: float) -> None:
    pass


def named(metrics: Sequence[Metric]) -> str:
    """For who waits for them."""
    first = metrics[0].name.removeprefix("wattline_")
    return first if len(metrics) == 1 else f"{first} and {len(metrics) - 1} more"


class Bar:
    """A `Progress` that draws nothing where `stream` is no terminal, nor in the first second of a row of fetches.

    Between two fetches nothing is drawn, so that others can print.
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
