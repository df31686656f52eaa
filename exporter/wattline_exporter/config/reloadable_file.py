"""Configuration files that are read again when they change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

CHECK_EVERY_S = 1.0

Loaded = TypeVar("Loaded")
FileSignature = tuple[tuple[int, ...], ...]

log = logging.getLogger(__name__)


class ConfigFileError(Exception):
    """An unusable file: one line with its path, the cause and the remedy."""


class ReloadableFile(Generic[Loaded]):
    """Content that `load` reads, which raises ConfigFileError. `parts` returns the files of a
    content.
    """

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
        self._error = ""
        self._content = load()
        self._signature = self._signature_of(self._content)
        self._checked_s = clock()

    def now(self) -> Loaded:
        """Return the content; check at most once a second for changes of inode, size and
        modification time.
        """
        if self._clock() - self._checked_s < CHECK_EVERY_S:
            return self._content
        self._checked_s = self._clock()
        signature = self._signature_of(self._content)
        if signature != self._signature:
            self._reload(signature)
        return self._content

    def _reload(self, signature: FileSignature) -> None:
        """Read the file; a write after `signature` was taken is found by the next check."""
        files = ", ".join(map(str, self._parts(self._content)))
        try:
            loaded = self._load()
        except ConfigFileError as error:
            if str(error) != self._error:
                log.warning("%s; the previous content stays in use", error)
            self._error = str(error)
            self._signature = signature
            return
        same_files = list(self._parts(loaded)) == list(self._parts(self._content))
        self._content = loaded
        self._error = ""
        self._signature = signature if same_files else self._signature_of(loaded)
        log.info("reloaded %s", files)

    def _signature_of(self, loaded: Loaded) -> FileSignature:
        return tuple(_signature(path) for path in self._parts(loaded))


def _signature(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
