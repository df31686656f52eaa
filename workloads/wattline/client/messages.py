"""Messages on stderr, and closed or full standard streams.

The module imports only the standard library, since it also runs inside users' processes.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import sys

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def message_line(text: str) -> str:
    """Return the line of a message, also for `sys.exit`."""
    return f"wattline: {text}"


def log_message(text: str) -> None:
    """Write a line to stderr; ignore a closed pipe or a full disk.

    It bypasses the buffer: text that cannot be written would remain there and Python would exit
    with code 120.
    """
    line = f"{message_line(text)}\n"
    with contextlib.suppress(OSError, ValueError):  # ValueError: stderr is closed
        if type(sys.stderr) is io.TextIOWrapper:
            sys.stderr.flush()
            os.write(sys.stderr.fileno(), line.encode(sys.stderr.encoding, "backslashreplace"))
        elif sys.stderr is not None:  # a replacement, for instance of a notebook
            print(line, end="", file=sys.stderr, flush=True)


@functools.cache
def log_message_once(text: str) -> None:
    log_message(text)


def open_closed_streams() -> None:
    """Open streams that the shell has closed (`2>&-`) on /dev/null, so that no other file gets
    their descriptor.
    """
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
