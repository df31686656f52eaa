"""Appends a run's events to its `events.jsonl` (see `exporter.contract.record`); of the standard library alone."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.client import at_exit
from workloads.client.messages import say_once

FOLDER = "WATTLINE_RECORD"
"""The run's folder; where it is unset nothing is recorded."""
EVENTS_FILE = "events.jsonl"
_FLUSH_EVERY_S = 0.5
_KEPT_BYTES = 64 * 1024
# One a process and folder, however often the run is joined: a contributor's indices go on.
_recorders: dict[tuple[int, str], Recorder] = {}


class Recorder:
    """Keeps iterations for half a second, so that a job with steps of a millisecond is not held up by the disk.

    For the process that made it (see `of`): what it keeps is not for a forked child to write once more.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS_FILE
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._flushed_s = time.monotonic()
        self._iterations = 0

    def iteration(self, *, contributor: str, **event: Any) -> None:
        with self._lock:
            index = self._iterations
            self._iterations += 1
        self.write("iteration", soon=True, contributor=contributor, index=index, **event)

    def write(self, event: str, *, soon: bool = False, **more: Any) -> None:
        line = json.dumps({"t": time.time(), "event": event, **more}, allow_nan=False).encode() + b"\n"
        with self._lock:
            self._kept += line
            now_s = time.monotonic()
            if not soon or len(self._kept) > _KEPT_BYTES or now_s - self._flushed_s > _FLUSH_EVERY_S:
                self._flush(now_s)

    def flush(self) -> None:
        with self._lock:
            self._flush(time.monotonic())

    def _flush(self, now_s: float) -> None:
        """Whole lines in one append, among which another process's do not come."""
        if not self._kept:
            return
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                written = 0
                while written < len(self._kept):  # a full disk takes a part, and refuses the rest
                    written += os.write(descriptor, self._kept[written:])
            finally:
                os.close(descriptor)
        except OSError as error:
            say_once(f"{self._path} cannot be written: {error.strerror}; the run goes on, its events are not kept")
        self._kept.clear()
        self._flushed_s = now_s


def of(environ: Mapping[str, str]) -> Recorder | None:
    """This process's own."""
    folder = environ.get(FOLDER)
    if not folder:
        return None
    key = os.getpid(), folder
    with contextlib.suppress(KeyError):
        return _recorders[key]
    made = Recorder(Path(folder))
    if _recorders.setdefault(key, made) is made:
        at_exit.call(made.flush)
    return _recorders[key]
