"""Formats of files: each module has those of one tool or family of tools.

    PTDAEMON_FORMAT = "ptdaemon"
    FORMATS = (FileFormat(PTDAEMON_FORMAT, is_ptdaemon, read_ptdaemon),)

A constant `…_FORMAT` is the name that users give to --format-of. It is a literal, since the help
reads the names without an import.
"""

from __future__ import annotations

from pathlib import Path

from wattline_analyzer.core.declared_names import declaring_files, names_in_order

AUTO = "auto"
"""Value of --format-of that recognizes the format."""
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


def format_files() -> dict[Path, list[str]]:
    """Return the files of the modules, and the names of their formats."""
    return declaring_files(__path__, "_FORMAT")


def format_names() -> list[str]:
    """Return the names of all formats in the order of the help."""
    return names_in_order((name for names in format_files().values() for name in names), _ORDER)
