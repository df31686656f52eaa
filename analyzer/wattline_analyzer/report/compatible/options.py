"""Options of `--compatible`, and the contents of the files that it writes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattline_analyzer.core.printing import exists, print_message, require_folder
from wattline_analyzer.report.compatible import tool_names

if TYPE_CHECKING:
    from wattline_analyzer.core.recorded_run import RecordedRun
    from wattline_analyzer.core.run_report import Report
    from wattline_analyzer.core.sample_table import SampleTable
    from wattline_analyzer.core.sources.base import SampleSource

    RunTool = StrEnum  # its members are found at run time
else:
    RunTool = StrEnum("RunTool", {name.upper(): name for name in tool_names()})


class SweepTool(StrEnum):
    GPU_TUNE = "gpu-tune"


RunToolsOption = Annotated[
    list[RunTool] | None,
    typer.Option(
        "--compatible",
        metavar="|".join(RunTool),
        help="Tool whose files to write as well, to a folder of its name in --out; repeatable.",
    ),
]


SweepToolsOption = Annotated[
    list[SweepTool] | None,
    typer.Option(
        "--compatible",
        metavar="|".join(SweepTool),
        help="Tool whose summaries to write as well, to a folder of its name in --out.",
    ),
]


def check_out_options(tools: list[RunTool] | list[SweepTool] | None, out: Path | None) -> None:
    """Raise typer.BadParameter if there is no folder for the files, or a file in its place; exit
    with an error if the folder cannot be written.
    """
    if tools and out is None:
        raise typer.BadParameter("--compatible writes files: also give --out, the folder for them")
    if out is not None and exists(out) and not out.is_dir():
        raise typer.BadParameter(f"--out: {out} is not a folder; give a new or existing folder")
    if out is not None:
        require_folder(out)


def compatible_samples(
    tools: list[RunTool] | None, source: SampleSource, recorded: RecordedRun
) -> SampleTable | None:
    """Fetch the samples that the files need; None if no files are requested. Raises FetchError."""
    from wattline_analyzer.core.runs.raw import fetch_every_scrape

    if not tools:
        return None
    return recorded.raw if recorded.untagged else fetch_every_scrape(source, recorded)


def compatible_contents(
    tools: list[RunTool] | None, report: Report, samples: SampleTable | None
) -> dict[str, bytes]:
    """Return the files' contents by name."""
    from wattline_analyzer.report.compatible.gpu_tune import REMARKS_FILE
    from wattline_analyzer.report.compatible.model_documents import remarks
    from wattline_analyzer.report.compatible.tool_format import load_tool_formats

    if not tools or samples is None:
        return {}
    formats = load_tool_formats()
    contents = {tool: formats[tool].write(report, samples) for tool in dict.fromkeys(tools)}
    if without := [tool for tool, files in contents.items() if not files]:
        print_message(
            f"no file of {', '.join(without)}: the run has no power of any GPU, no emissions, or "
            "no work of the kind "
            "that the tool needs"
        )
    silent = [tool for tool, files in contents.items() if files and not formats[tool].has_remarks]
    if silent and (texts := remarks(report)):
        print_message(
            f"the files of {', '.join(silent)} have no field for this: {'; '.join(texts)}; see "
            "REMARKS.txt"
        )
        for tool in silent:
            contents[tool] |= {REMARKS_FILE: "".join(f"{text}.\n" for text in texts).encode()}
    return {
        f"{tool}/{name}": content
        for tool, files in contents.items()
        for name, content in files.items()
    }
