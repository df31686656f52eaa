"""Files that another tool reads, and how they are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable
from wattline_analyzer.report.compatible import tool_files


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """Files of one tool. `write` returns contents by name, none where the run lacks what they need.

    `has_remarks`: the files have a field for the remarks on the run.
    """

    name: str
    write: Callable[[Report, SampleTable], dict[str, bytes]]
    has_remarks: bool = True


def load_tool_formats() -> dict[str, ToolFormat]:
    """Return the formats of all modules by the name of the tool."""
    modules = [
        import_module(f"wattline_analyzer.report.compatible.{path.stem}") for path in tool_files()
    ]
    return {one.name: one for module in modules for one in module.FORMATS}
