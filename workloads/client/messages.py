"""Messages on stderr.

The module imports only the standard library, since it also runs inside users' processes.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys


def log_message(text: str) -> None:
    """Write a line to stderr; ignore a closed pipe or a full disk.

    It bypasses the buffer: text that cannot be written would remain there and Python would exit with code 120.
    """
    line = f"wattline: {text}\n"
    with contextlib.suppress(OSError, ValueError):  # ValueError: stderr is closed
        if type(sys.stderr) is io.TextIOWrapper:
            sys.stderr.flush()
            os.write(sys.stderr.fileno(), line.encode(sys.stderr.encoding, "backslashreplace"))
        elif sys.stderr is not None:  # a replacement, for instance of a notebook
            print(line, end="", file=sys.stderr, flush=True)


@functools.cache
def log_message_once(text: str) -> None:
    log_message(text)
