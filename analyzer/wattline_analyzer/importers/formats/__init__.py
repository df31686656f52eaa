"""Formats of files: each module has those of one tool or family of tools.

    PTDAEMON_FORMAT = "ptdaemon"
    FORMATS = (FileFormat(PTDAEMON_FORMAT, is_ptdaemon, read_ptdaemon),)

A constant `…_FORMAT` is the name that users give to --format-of. It is a literal, since the help
reads the names without an import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

AUTO = "auto"
"""Value of --format-of that recognizes the format."""
_NAME = re.compile(r'^[A-Z_]+_FORMAT = "([a-z0-9-]+)"$', re.MULTILINE)
_ORDER = (
    "wattline",
    "gpu-tune",
    "iris-gpubench",
    "tenant-events",
    "aipowermeter",
    "nvidia-smi",
    "wall-meter",
    "ptdaemon",
    "aiperf",
    "ml-energy",
    "vllm-bench",
)
"""Order of the formats in the help. All others follow by name."""


def format_files() -> list[Path]:
    """Return the files of the modules."""
    return [path for folder in __path__ for path in sorted(Path(folder).glob("[!_]*.py"))]


def format_names() -> list[str]:
    """Return the names of all formats in the order of the help."""
    texts = [path.read_text(encoding="utf-8") for path in format_files()]
    return in_order(name for text in texts for name in _NAME.findall(text))


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order of the help."""
    places = {name: place for place, name in enumerate(_ORDER)}
    return sorted(names, key=lambda name: (places.get(name, len(_ORDER)), name))
