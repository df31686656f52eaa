"""Option that also writes a run, or a sweep, as files of other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.messages import print_message

if TYPE_CHECKING:
    import pandas as pd

    from analyzer.model.report import Report
    from analyzer.model.samples import RunFrames
    from analyzer.sources.base import SampleSource


class RunTool(StrEnum):
    GPU_TUNE = "gpu-tune"
    IRIS_GPUBENCH = "iris-gpubench"


class SweepTool(StrEnum):
    GPU_TUNE = "gpu-tune"


RunToolsOption = Annotated[
    list[RunTool] | None,
    typer.Option(
        "--compatible", help="Tool whose files are also written, to a folder of its name in --out; repeatable."
    ),
]
SweepToolsOption = Annotated[
    list[SweepTool] | None,
    typer.Option("--compatible", help="Tool whose summaries are also written, to a folder of its name in --out."),
]


def check_compatible_option(tools: list[RunTool] | list[SweepTool] | None, out: Path | None) -> None:
    """Raise typer.BadParameter if there is no folder for the files."""
    if tools and out is None:
        raise typer.BadParameter("--compatible writes files: also give --out, the folder for them")


def compatible_samples(tools: list[RunTool] | None, source: SampleSource, frames: RunFrames) -> pd.DataFrame | None:
    """Fetch the samples that the files need; None if no files are requested. Raises FetchError."""
    from analyzer.sources.runs.raw import fetch_every_scrape

    if not tools:
        return None
    return frames.raw if frames.untagged else fetch_every_scrape(source, frames)


def compatible_contents(tools: list[RunTool] | None, report: Report, samples: pd.DataFrame | None) -> dict[str, bytes]:
    """Return the files' contents by name."""
    from analyzer.output.compatible.gpu_tune import gpu_tune_files
    from analyzer.output.compatible.iris import iris_files

    if not tools or samples is None:
        return {}
    writers = {RunTool.GPU_TUNE: gpu_tune_files, RunTool.IRIS_GPUBENCH: iris_files}
    contents = {
        f"{tool}/{name}": content
        for tool in dict.fromkeys(tools)
        for name, content in writers[tool](report, samples).items()
    }
    if not contents:
        print_message("no file for another tool: the source has no power of any GPU of the run")
    return contents
