"""How to install what is missing: the one place that says it, since no package index has Wattline yet."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that adds an optional part; it is typed in the clone of the repository."""
    return f"in the clone of Wattline, type: pip install '.[{extra}]'"
