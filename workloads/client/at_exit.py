"""What a process has still to do when it ends, in whichever way it was started."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


def call(close: Callable[[], None]) -> None:
    """Also in a child of multiprocessing, which runs no atexit; not in the children that this process forks."""
    pid = os.getpid()

    def close_own() -> None:
        if os.getpid() == pid:
            close()

    atexit.register(close_own)
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"].Finalize(None, close_own, exitpriority=10)
