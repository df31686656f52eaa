"""Files of other tools: each module has those of one tool or family of tools.

    CYCLONEDX_TOOL = "cyclonedx"
    FORMATS = (ToolFormat(CYCLONEDX_TOOL, cyclonedx_files),)

A constant `…_TOOL` is the name that users give to --compatible. It is a literal, since the help
reads the names without an import.
"""

from __future__ import annotations

from pathlib import Path

from wattline_analyzer.core.declared_names import declaring_files, names_in_order

_ORDER = (
    "gpu-tune",
    "iris-gpubench",
    "hugging-face",
    "ai-energy-score",
    "cyclonedx",
    "spdx",
    "eu-gpai",
    "ml-energy",
    "inferencex",
)
"""Order of the tools in the help. All others follow by name."""


def tool_files() -> dict[Path, list[str]]:
    """Return the files of the modules, and the names of their tools."""
    return declaring_files(__path__, "_TOOL")


def tool_names() -> list[str]:
    """Return the names of all tools in the order of the help."""
    return names_in_order((name for names in tool_files().values() for name in names), _ORDER)
