"""Several jobs that begin to measure at one instant: each says that it is ready and waits for the others, by files.

Of the standard library alone. The plan's runner makes the folder; whoever finds `ABANDONED` in it goes no further.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = "WATTLINE_BARRIER"
"""`FOLDER:COUNT:SECONDS`: how many are to come, and for how long the first waits for the last."""
ABANDONED = "abandoned"
_RUNNER = "runner"
_POLL_S = 0.005


class BarrierError(RuntimeError):
    """The others did not come; one line, with the remedy."""


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """By the plan's runner: the lock goes with it, in whatever way it ends, and nobody waits for it any longer."""
    with (folder / _RUNNER).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_deserted(folder: Path) -> bool:
    try:
        with (folder / _RUNNER).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, FileNotFoundError):  # there may be none, where somebody else makes the folder
        return False
    return True


def await_all(environ: Mapping[str, str], *, is_counted: bool = True) -> None:
    """Return at once where there is no barrier. Raises BarrierError. Of a tenant's processes one is to be counted."""
    text = environ.get(FOLDER)
    if not text:
        return
    name, count, seconds = text.rsplit(":", 2)
    folder = Path(name)
    give_up_s = time.monotonic() + float(seconds)
    try:
        if is_counted:
            (folder / f"ready-{os.getpid()}").touch()
        _await(folder, int(count), give_up_s, float(seconds))
    except OSError as error:
        raise BarrierError(f"the barrier is gone ({folder}: {error.strerror}): has the plan's runner ended?") from error


def _await(folder: Path, count: int, give_up_s: float, seconds: float) -> None:
    while True:
        present = {path.name for path in folder.iterdir()}
        if ABANDONED in present:
            raise BarrierError("another tenant failed before all were ready, so this one does not begin")
        if _is_deserted(folder):
            raise BarrierError("the plan's runner has ended before all were ready, so this one does not begin")
        ready = sum(name.startswith("ready-") for name in present)
        if ready >= count:
            return
        if time.monotonic() > give_up_s:
            (folder / ABANDONED).touch()  # else who comes next finds all there, and goes on alone
            raise BarrierError(
                f"{ready} of {count} tenants were ready within {seconds:g} s; give the slow one more time with "
                "barrier_timeout_seconds"
            )
        time.sleep(_POLL_S)
