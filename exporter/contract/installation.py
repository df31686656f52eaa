"""Installation command for optional parts, since no package index has Wattline yet."""

from __future__ import annotations


def install(extra: str) -> str:
    """Return the command that installs an optional part from a clone of the repository."""
    return f"in the clone of Wattline, run: pip install '.[{extra}]'"
