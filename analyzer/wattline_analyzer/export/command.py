"""`analyzer export`: a run's raw samples as a file for other programs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import install, with_option_groups
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    ConnectionOptions,
    SinceOption,
    duration_option,
)
from wattline_analyzer.core.printing import exists, exit_with_error, print_message

if TYPE_CHECKING:
    from wattline_analyzer.core.samples import Series

COMMAND = {
    "name": "export",
    "help": "Export the raw samples of a run.",
    "group": "Report",
}


class ExportFormat(StrEnum):
    OPENMETRICS = "openmetrics"
    CSV = "csv"
    PARQUET = "parquet"


_BY_SUFFIX = {
    ".csv": ExportFormat.CSV,
    ".parquet": ExportFormat.PARQUET,
    ".om": ExportFormat.OPENMETRICS,
    ".txt": ExportFormat.OPENMETRICS,
}
_NO_PARQUET = (
    f"Parquet needs pyarrow, which is not installed: {install('parquet')}; or export to a .csv"
)


@with_option_groups
def export_command(
    *,
    run_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="ID of the run, the same as RUN_ID; `analyzer runs` lists them."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File to create: .om or .txt, .csv, .parquet.")
    ],
    form: Annotated[
        ExportFormat | None,
        typer.Option(
            "--format",
            metavar="|".join(ExportFormat),
            help="Format of the file (default: by the suffix of --out).",
        ),
    ] = None,
    margin: Annotated[
        str, typer.Option(metavar="TIME", help="Time before and after the run to include: 2m, 1h.")
    ] = "2m",
    since: SinceOption = DEFAULT_SINCE,
    connection: ConnectionOptions,
) -> None:
    """Export a run's raw samples as CSV, Parquet, or OpenMetrics for promtool and
    VictoriaMetrics.
    """
    if run_id is None:
        raise typer.BadParameter("no run is named; give its ID, which analyzer runs lists")
    file_format = form or _BY_SUFFIX.get(out.suffix.lower())
    if file_format is None:
        raise typer.BadParameter(
            f"--format is required: {out.name} ends in none of {', '.join(_BY_SUFFIX)}"
        )
    since_s = duration_option(since)
    margin_s = duration_option(margin, "--margin")
    if exists(out):
        exit_with_error(f"cannot write {out}: it exists and is not overwritten; give another --out")
    if file_format is ExportFormat.PARQUET:
        _check_parquet()
    from wattline_analyzer.core.runs.raw import SeriesSpool, fetch_whole_run
    from wattline_analyzer.core.runs.scrapes import AHEAD_S

    with (
        _exit_if_not_writable(out),
        TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder,
    ):
        spool = SeriesSpool(Path(folder))
        now_s = time.time()
        with connection.open() as source:
            within = (now_s - since_s, now_s + AHEAD_S)
            for part in fetch_whole_run(source, run_id, within, margin_s, print_message):
                spool.add(part)
        counted = CountedSeries(spool.series())
        # written next to --out and moved at the end, so that --out is never incomplete
        _write_export(Path(folder) / "whole", file_format, counted, spool.label_names)
        (Path(folder) / "whole").replace(out)
    print_message(
        f"wrote {counted.samples} samples of {len(counted.metrics)} metrics to "
        f"{out}{_next_step(file_format, out)}"
    )


class CountedSeries:
    """Series that counts its samples and metrics while it is read."""

    def __init__(self, series: Iterable[Series]) -> None:
        self._series = series
        self.samples = 0
        self.metrics: set[str] = set()

    def __iter__(self) -> Iterator[Series]:
        for one in self._series:
            self.metrics.add(one[0]["__name__"])
            self.samples += len(one[1])
            yield one


@contextmanager
def _exit_if_not_writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        exit_with_error(
            f"cannot write {out}: {error.strerror or error}; give --out a path with write "
            "permission"
        )


def _check_parquet() -> None:
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        exit_with_error(_NO_PARQUET)


def _write_export(
    path: Path, file_format: ExportFormat, series: Iterable[Series], names: list[str]
) -> None:
    from wattline_analyzer.export import output as samples

    if file_format is ExportFormat.PARQUET:
        samples.write_parquet(path, series, names)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        is_openmetrics = file_format is ExportFormat.OPENMETRICS
        file.writelines(
            samples.openmetrics(series) if is_openmetrics else samples.samples_csv(series, names)
        )


def _next_step(file_format: ExportFormat, out: Path) -> str:
    if file_format is not ExportFormat.OPENMETRICS:
        return ""
    return (
        f"; Prometheus: promtool tsdb create-blocks-from openmetrics {out} DATA-FOLDER, "
        f"VictoriaMetrics: curl -X POST -T {out} http://HOST:8428/api/v1/import/prometheus"
    )
