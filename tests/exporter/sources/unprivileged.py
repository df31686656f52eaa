"""Calls as an unprivileged user, because root has access to every file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65_534


@contextmanager
def as_unprivileged_user() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
