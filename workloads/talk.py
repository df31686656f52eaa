"""What a program says on stderr; the standard library alone, as it is said inside users' processes too."""

from __future__ import annotations

import functools
import sys


def say(text: str) -> None:
    print(f"wattline: {text}", file=sys.stderr, flush=True)


@functools.cache
def say_once(text: str) -> None:
    say(text)
