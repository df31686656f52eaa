"""Registration of functions that run when a process ends."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


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
