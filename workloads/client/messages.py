"""What a program says on stderr; the standard library alone, as it is said inside users' processes too."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys


def say(text: str) -> None:
    """Where nobody listens any more, behind a closed pipe or on a full disk, it is not said, and that stops nothing.

    Past the buffer: what cannot be written would stay there, and Python would exit with 120 for it.
    """
    line = f"wattline: {text}\n"
    with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
        if type(sys.stderr) is io.TextIOWrapper:
            sys.stderr.flush()
            os.write(sys.stderr.fileno(), line.encode(sys.stderr.encoding, "backslashreplace"))
        elif sys.stderr is not None:  # a notebook's own, say
            print(line, end="", file=sys.stderr, flush=True)


@functools.cache
def say_once(text: str) -> None:
    say(text)
