"""The option that also writes a run, or a sweep, as files of other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.connection import say

if TYPE_CHECKING:
    import pandas as pd

    from analyzer.model.report import Report
    from analyzer.model.samples import RunFrames
    from analyzer.sources.base import Source


class RunTool(StrEnum):
    GPU_TUNE = "gpu-tune"
    IRIS_GPUBENCH = "iris-gpubench"


class SweepTool(StrEnum):
    GPU_TUNE = "gpu-tune"


RunToolsOption = Annotated[
    list[RunTool] | None,
    typer.Option("--compatible", help="Also the files of this tool, in a folder of its name in --out; repeatable."),
]
SweepToolsOption = Annotated[
    list[SweepTool] | None,
    typer.Option("--compatible", help="Also the summaries of this tool, in a folder of its name in --out."),
]


def check(tools: list[RunTool] | list[SweepTool] | None, out: Path | None) -> None:
    if tools and out is None:
        raise typer.BadParameter("--compatible writes files; give --out a folder for them")


def scrapes(tools: list[RunTool] | None, source: Source, frames: RunFrames) -> pd.DataFrame | None:
    """What the files are made of; None where none is wanted. Raises SourceError."""
    from analyzer.sources.runs.every_scrape import every_scrape

    if not tools:
        return None
    return frames.raw if frames.untagged else every_scrape(source, frames)


def contents(tools: list[RunTool] | None, report: Report, found: pd.DataFrame | None) -> dict[str, bytes]:
    from analyzer.output.compatible import files as compatible_files

    if not tools or found is None:
        return {}
    made = compatible_files.of_run([str(tool) for tool in tools], report, found)
    if not made:
        say("no file for another tool: no GPU of the run has its power at this source")
    return made
