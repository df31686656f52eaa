"""Stdin, stdout and stderr of a command that are closed, or take nothing any more."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def open_closed() -> None:
    """What the shell has closed (`2>&-`) becomes /dev/null: the next file would get its number, and a job's words."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)


def print_no_more() -> None:
    """What stdout did not take is not tried again at exit, for which Python would exit with 120."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
