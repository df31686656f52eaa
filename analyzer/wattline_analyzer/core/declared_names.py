"""Names that the modules of a folder declare, read without an import for the help.

A module declares a name as a constant with a literal: `PTDAEMON_FORMAT = "ptdaemon"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def declaring_files(folders: Iterable[str], suffix: str) -> dict[Path, list[str]]:
    """Return the files that declare constants with this suffix, `_FORMAT`, and their names."""
    declared = re.compile(rf'^[A-Z0-9_]+{suffix} = "([a-z0-9-]+)"$', re.MULTILINE)
    paths = [path for folder in folders for path in sorted(Path(folder).glob("*.py"))]
    found = {path: declared.findall(path.read_text(encoding="utf-8")) for path in paths}
    return {path: names for path, names in found.items() if names}


def names_in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Return the names in this order, then those that it lacks by name."""
    places = {name: place for place, name in enumerate(order)}
    return sorted(names, key=lambda name: (places.get(name, len(order)), name))
