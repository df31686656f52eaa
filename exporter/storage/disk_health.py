"""Health of the disk that state and history are written to."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from exporter.contract.metrics import STATE_UP
from exporter.model import Reading

log = logging.getLogger(__name__)


class DiskHealth:
    """Errors of the last writes to the state folder `folder`, logged once per outage."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._errors: dict[str, str] = {}
        self._logged: tuple[str, str] | None = None
        """File and error that were logged last, during an outage."""

    async def write(self, thread: ThreadPoolExecutor, file: str, write: Callable[[], None]) -> bool:
        """Run `write` in the thread. Return False if it failed; the daemon goes on in any case."""
        error = ""
        try:
            await asyncio.get_running_loop().run_in_executor(thread, write)
        except (sqlite3.Error, OSError) as raised:
            error = str(raised)
        self._errors[file] = error
        self._log(file)
        return not error

    @property
    def error(self) -> str:
        """Error of the last writes, empty if all succeeded."""
        return next(filter(None, self._errors.values()), "")

    def readings(self) -> Iterator[Reading]:
        yield Reading(STATE_UP, (), float(not self.error))

    def _log(self, file: str) -> None:
        """Log an outage once, although a full disk affects both files."""
        error, logged = self._errors[file], self._logged
        if error and (logged is None or (logged[0] == file and logged[1] != error)):
            self._logged = file, error
            log.warning("cannot write to %s: %s; new data is kept in memory, metrics are served", self._folder, error)
        elif logged and not self.error:
            self._logged = None
            log.info("writing to %s again", self._folder)
