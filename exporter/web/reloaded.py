"""A file that is read again when it has changed; what cannot be used is said once, and what was there stays."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

LOOK_EVERY_S = 1.0

Loaded = TypeVar("Loaded")
Signature = tuple[tuple[int, ...], ...]

log = logging.getLogger(__name__)


class FileError(Exception):
    """The file cannot be used: one line that names it, the cause and the remedy."""


class Reloaded(Generic[Loaded]):
    """`load` reads it, or raises FileError; `parts` are the files that `load` has read for what it gave."""

    def __init__(
        self,
        load: Callable[[], Loaded],
        parts: Callable[[Loaded], Iterable[Path]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._parts = parts
        self._clock = clock
        self._trouble = ""
        self._now = load()
        self._signature = self._signature_of(self._now)
        self._looked_s = clock()

    def now(self) -> Loaded:
        """Looks at most once a second whether a file is another one: by inode, size and time of change."""
        if self._clock() - self._looked_s < LOOK_EVERY_S:
            return self._now
        self._looked_s = self._clock()
        signature = self._signature_of(self._now)
        if signature != self._signature:
            self._take(signature)
        return self._now

    def _take(self, signature: Signature) -> None:
        """`signature` was taken before the reading: who writes in between is found the next time."""
        files = ", ".join(map(str, self._parts(self._now)))
        try:
            loaded = self._load()
        except FileError as error:
            if str(error) != self._trouble:
                log.warning("%s; going on with what was read before", error)
            self._trouble = str(error)
            self._signature = signature
            return
        same_files = list(self._parts(loaded)) == list(self._parts(self._now))
        self._now, self._trouble = loaded, ""
        self._signature = signature if same_files else self._signature_of(loaded)
        log.info("read again: %s", files)

    def _signature_of(self, loaded: Loaded) -> Signature:
        return tuple(_signature(path) for path in self._parts(loaded))


def _signature(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
