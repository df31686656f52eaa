"""Writers of a run's `events.jsonl`, flushed when the process ends, and of its results.

`wattline.contract.run_files` defines the format. The module imports only the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattline.client.messages import log_message_once

FOLDER = "WATTLINE_RECORD"
"""Folder of the run; nothing is recorded if it is unset."""
EVENTS_FILE = "events.jsonl"
_FLUSH_EVERY_S = 0.5
_BUFFER_BYTES = 64 * 1024


def call_at_exit(close: Callable[[], None]) -> None:
    """Call `close` at the end of this process, but not of the children that it forks.

    A child of multiprocessing does not run atexit functions, so its own finalizers are used.
    """
    pid = os.getpid()

    def close_own() -> None:
        if os.getpid() == pid:
            close()

    atexit.register(close_own)
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"].Finalize(None, close_own, exitpriority=10)


# One per process and folder, however often the run is joined, so that the indices of iterations
# continue.
_recorders: dict[tuple[int, str], Recorder] = {}


class Recorder:
    """Event writer that buffers iterations for half a second, so that the disk does not slow down
    short steps.

    It belongs to one process (see `recorder_for`): a forked child must not write the parent's
    buffer again.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS_FILE
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._flushed_s = time.monotonic()
        self._iterations = 0

    def iteration(self, *, contributor: str, **event: Any) -> None:
        with self._lock:
            index = self._iterations
            self._iterations += 1
        self.write("iteration", buffered=True, contributor=contributor, index=index, **event)

    def write(self, event: str, *, buffered: bool = False, **more: Any) -> None:
        line = (
            json.dumps({"t": time.time(), "event": event, **more}, allow_nan=False).encode() + b"\n"
        )
        with self._lock:
            self._buffer += line
            now_s = time.monotonic()
            if (
                not buffered
                or len(self._buffer) > _BUFFER_BYTES
                or now_s - self._flushed_s > _FLUSH_EVERY_S
            ):
                self._flush(now_s)

    def flush(self) -> None:
        with self._lock:
            self._flush(time.monotonic())

    def _flush(self, now_s: float) -> None:
        """Append whole lines in one write, so that lines of several processes do not mix."""
        if not self._buffer:
            return
        try:
            descriptor = os.open(
                self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
            try:
                written = 0
                while written < len(self._buffer):  # a nearly full disk accepts only a part
                    written += os.write(descriptor, self._buffer[written:])
            finally:
                os.close(descriptor)
        except OSError as error:
            log_message_once(
                f"cannot write {self._path}: {error.strerror}; these events are lost, the run "
                "continues"
            )
        self._buffer.clear()
        self._flushed_s = now_s


def recorder_for(environ: Mapping[str, str]) -> Recorder | None:
    """Return the recorder of this process, or None if the run has no folder."""
    folder = environ.get(FOLDER)
    if not folder:
        return None
    key = os.getpid(), folder
    with contextlib.suppress(KeyError):
        return _recorders[key]
    created = Recorder(Path(folder))
    if _recorders.setdefault(key, created) is created:
        call_at_exit(created.flush)
    return _recorders[key]


def write_results(path: str | None, results: Mapping[str, float]) -> None:
    """Append the results to the file of the runner, which ends the run; without a file, do
    nothing.
    """
    if results and path:
        try:
            with Path(path).open("a") as file:
                file.write(json.dumps(results) + "\n")
        except OSError as error:
            log_message_once(
                f"cannot write the results to {path}: {error.strerror}; free disk space"
            )
