"""Handling of closed or full standard streams of a command."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_closed_streams() -> None:
    """Open streams that the shell has closed (`2>&-`) on /dev/null, so that no other file gets their descriptor."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def discard_stdout() -> None:
    """Redirect stdout to /dev/null, since Python exits with code 120 if the last flush fails."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
