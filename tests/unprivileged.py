"""Permissions of a user other than root, for tests that run as root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NOBODY = 65_534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Open files as another user, whom the permissions of folders apply to."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
