"""The folder of a barrier, as the plan's runner sees it: it comes itself, as the last, once all is well."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from workloads.client import barrier


@dataclass(frozen=True, slots=True)
class Meeting:
    folder: Path
    count: int
    """Without the runner."""
    timeout_s: float

    @property
    def environment(self) -> dict[str, str]:
        return {barrier.FOLDER: f"{self.folder}:{self.count + 1}:{self.timeout_s:g}"}

    def pids(self) -> list[int]:
        """Of those who have come, the runner apart."""
        pids = (int(path.name.removeprefix("ready-")) for path in self.folder.glob("ready-*"))
        return sorted(pid for pid in pids if pid != os.getpid())

    def release(self) -> float:
        """Unix seconds."""
        (self.folder / f"ready-{os.getpid()}").touch()
        return time.time()

    def abandon(self) -> None:
        (self.folder / barrier.ABANDONED).touch()


@contextlib.contextmanager
def meeting(count: int, timeout_s: float) -> Iterator[Meeting | None]:
    """None where nobody has to wait."""
    if not count:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="wattline-barrier-") as folder, barrier.held(Path(folder)):
        yield Meeting(Path(folder), count, timeout_s)
