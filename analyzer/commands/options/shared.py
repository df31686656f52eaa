"""Options that several commands share, and the times that options hold."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.printing import OutputFormat, exists, print_message
from analyzer.model.time_text import LocalTimeError, SystemZone, names_zone, parse_duration, parse_moment

if TYPE_CHECKING:
    from analyzer.model.report import Report
    from analyzer.model.sample_table import RunFrames, SampleTable
    from analyzer.sources.base import Access, SampleSource

DEFAULT_SINCE = "30d"
FormatOption = Annotated[
    OutputFormat, typer.Option("--format", metavar="|".join(OutputFormat), help="Format of the output on stdout.")
]
SinceOption = Annotated[str, typer.Option(metavar="TIME", help="Time to search for runs, up to now: 90m, 12h, 30d.")]
WaitOption = Annotated[bool, typer.Option(help="Wait for a missing scrape.", show_default=False)]
UnitOption = Annotated[
    str | None,
    typer.Option(metavar="UNIT", help="Unit of work, e.g. steps (default: the primary unit)."),
]
CarbonOption = Annotated[
    float | None,
    typer.Option(min=0, max=5_000, metavar="G/KWH", help="Constant carbon intensity in gCO2eq/kWh, to add emissions."),
]


def duration_option(text: str, option: str = "--since", unit: str = "") -> float:
    """Return the seconds of an option's duration; `unit` is used if the text has none. Raises typer.BadParameter."""
    try:
        return parse_duration(text, unit)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def moment_option(text: str, option: str, now_s: float) -> float:
    """Return the Unix seconds of `now`, `-2h`, a date or a Unix time. Raises typer.BadParameter.

    A date without a zone is local time, which a message on stderr says. A local time that occurs twice or never is
    refused.
    """
    text = text.strip()
    if text == "now":
        return now_s
    if text.startswith("-"):
        return now_s - duration_option(text[1:], option)
    try:
        moment_s = parse_moment(text, SystemZone())
    except LocalTimeError as error:
        raise typer.BadParameter(f"{option}: {error}") from error
    except ValueError as error:
        raise typer.BadParameter(
            f"{option}: {error}; write 2026-11-20T10:15:00, with a zone as in 2026-11-20T10:15:00Z, Unix seconds, -2h "
            "or now"
        ) from error
    if not names_zone(text):
        print_message(
            f"{option} names no time zone: using local time ({time.strftime('%z', time.localtime(moment_s))})"
        )
    return moment_s


class RunTool(StrEnum):
    GPU_TUNE = "gpu-tune"
    IRIS_GPUBENCH = "iris-gpubench"
    HUGGING_FACE = "hugging-face"
    AI_ENERGY_SCORE = "ai-energy-score"
    CYCLONEDX = "cyclonedx"
    SPDX = "spdx"
    EU_GPAI = "eu-gpai"
    ML_ENERGY = "ml-energy"
    INFERENCE_X = "inferencex"


_WITHOUT_REMARKS = (RunTool.GPU_TUNE, RunTool.IRIS_GPUBENCH, RunTool.AI_ENERGY_SCORE, RunTool.ML_ENERGY)


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
    """Raise typer.BadParameter if there is no folder for the files, or a file in its place."""
    if tools and out is None:
        raise typer.BadParameter("--compatible writes files: also give --out, the folder for them")
    if out is not None and exists(out) and not out.is_dir():
        raise typer.BadParameter(f"--out: {out} is not a folder; give a new or existing folder")


def compatible_samples(tools: list[RunTool] | None, source: SampleSource, frames: RunFrames) -> SampleTable | None:
    """Fetch the samples that the files need; None if no files are requested. Raises FetchError."""
    from analyzer.sources.runs.raw import fetch_every_scrape

    if not tools:
        return None
    return frames.raw if frames.untagged else fetch_every_scrape(source, frames)


def compatible_contents(tools: list[RunTool] | None, report: Report, samples: SampleTable | None) -> dict[str, bytes]:
    """Return the files' contents by name."""
    from analyzer.output.compatible.benchmarks import inference_x_files, ml_energy_files
    from analyzer.output.compatible.gpu_tune import REMARKS_FILE, gpu_tune_files
    from analyzer.output.compatible.iris import iris_files
    from analyzer.output.compatible.model_documents import (
        cyclonedx_files,
        documentation_form_files,
        energy_score_files,
        model_card_files,
        remarks,
        spdx_files,
    )

    if not tools or samples is None:
        return {}
    writers = {
        RunTool.GPU_TUNE: gpu_tune_files,
        RunTool.IRIS_GPUBENCH: iris_files,
        RunTool.HUGGING_FACE: model_card_files,
        RunTool.AI_ENERGY_SCORE: energy_score_files,
        RunTool.CYCLONEDX: cyclonedx_files,
        RunTool.SPDX: spdx_files,
        RunTool.EU_GPAI: documentation_form_files,
        RunTool.ML_ENERGY: ml_energy_files,
        RunTool.INFERENCE_X: inference_x_files,
    }
    contents = {tool: writers[tool](report, samples) for tool in dict.fromkeys(tools)}
    if without := [tool for tool, files in contents.items() if not files]:
        print_message(
            f"no file of {', '.join(without)}: the run has no power of any GPU, no emissions, or no work of the kind "
            "that the tool needs"
        )
    silent = [tool for tool, files in contents.items() if files and tool in _WITHOUT_REMARKS]
    if silent and (texts := remarks(report)):
        print_message(f"the files of {', '.join(silent)} have no field for this: {'; '.join(texts)}; see REMARKS.txt")
        for tool in silent:
            contents[tool] |= {REMARKS_FILE: "".join(f"{text}.\n" for text in texts).encode()}
    return {f"{tool}/{name}": content for tool, files in contents.items() for name, content in files.items()}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Address and credentials of a source as the user typed them; nothing is opened yet."""

    source: Annotated[
        str | None,
        typer.Option(
            envvar="WATTLINE_SOURCE",
            metavar="URL|PATH",
            help="Source of samples: http://prometheus:9090, VictoriaMetrics with its path, an exporter, or a history "
            "file or folder.",
        ),
    ] = None
    basic_auth: Annotated[
        str | None,
        typer.Option(
            envvar="WATTLINE_BASIC_AUTH", metavar="USER:PASSWORD-FILE", help="Credentials for basic authentication."
        ),
    ] = None
    bearer_token_file: Annotated[
        Path | None,
        typer.Option(envvar="WATTLINE_BEARER_TOKEN_FILE", metavar="FILE", help="File that holds a bearer token."),
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="'NAME: VALUE'", help="Extra HTTP header, repeatable; also lines of WATTLINE_HEADERS."
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(
            envvar="WATTLINE_CA_FILE",
            metavar="FILE",
            help="PEM file of the server certificate's authority.",
        ),
    ] = None

    def open(self) -> closing[SampleSource]:
        """Open the source, to be closed. Raises FetchError, and typer.BadParameter for an invalid option."""
        return closing(self.open_source())

    def open_source(self) -> SampleSource:
        """Open the source. Raises as `open` does."""
        from analyzer.sources.base import ProgressBar
        from analyzer.sources.choose import choose_source

        return choose_source(self.source, self.access(), print_message, progress=ProgressBar(sys.stderr))

    def access(self) -> Access:
        """Return the credentials. Raises as `open` does."""
        from analyzer.sources.base import read_access

        lines = [line for line in os.environ.get("WATTLINE_HEADERS", "").splitlines() if line.strip()]
        try:
            return read_access(self.basic_auth, self.bearer_token_file, self.header or lines, self.ca_file)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
