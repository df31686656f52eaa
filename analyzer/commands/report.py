"""`analyzer report`: one run, on stdout and as files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.options.connection import (
    DEFAULT_SINCE,
    Connection,
    FormatOption,
    SinceOption,
    fail,
    reads,
    say,
    seconds,
    write_into,
)
from analyzer.commands.options.time_range import spans
from analyzer.commands.options.user_inputs import Told, read_again, tells
from analyzer.output.compatible import options as compatible_files
from analyzer.output.compatible.options import RunToolsOption
from analyzer.output.form import Format

if TYPE_CHECKING:
    import pandas as pd

    from analyzer.energy.calibration import Calibration
    from analyzer.model.report import Report
    from analyzer.model.samples import RunFrames
    from analyzer.model.user_inputs import Given
    from analyzer.sources.base import Source
    from analyzer.sources.untagged.request import Asked


@reads
@tells
@spans
def report(  # typer makes each argument an option
    connection: Connection,
    told: Told,
    asked: str | Asked,
    form: FormatOption = Format.TABLE,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html, report.png, timeseries.csv and metrics.yml.")
    ] = None,
    carbon: Annotated[
        float | None, typer.Option(min=0, metavar="G/KWH", help="Add emissions at this intensity, gCO2eq/kWh.")
    ] = None,
    compatible: RunToolsOption = None,
    calibration: Annotated[
        Path | None, typer.Option(help="CSV or YAML of uuid, gain, offset_watts by card: adds calibrated energy.")
    ] = None,
    since: SinceOption = DEFAULT_SINCE,
) -> None:
    """One run, or a range of time: a table on stdout, and files in the folder of --out."""
    since_s = seconds(since)
    compatible_files.check(compatible, out)
    cards = _calibrations(calibration) if calibration else ()
    from analyzer.model.user_inputs import Given
    from analyzer.sources.runs.sensors import sensors

    with connection.open() as chosen:
        frames, finish = _found(chosen, asked, since_s)
        frames, past = read_again(told, chosen, frames)
        for_charts = None if out is None else frames.raw if frames.untagged else sensors(chosen, frames)
        for_others = compatible_files.scrapes(compatible, chosen, frames)
    measured = finish(_assessed(frames, Given(carbon, told.pue, told.price, past, told.hardware, cards)))
    _print(measured, form)
    if out is not None and for_charts is not None:
        others = compatible_files.contents(compatible, measured, for_others)
        _write_files(out, measured, frames, for_charts, others)


def _assessed(frames: RunFrames, given: Given) -> Report:
    from analyzer.assess import run as assess
    from analyzer.energy.calibration import CalibrationError

    try:
        return assess.assess(frames, given)
    except CalibrationError as error:
        fail(str(error))
    except assess.NoEnergyError as error:
        fail(
            f"{error}: no process of it was seen on a GPU and no CPU could be read, or the node has neither, "
            "or it began seconds ago; "
            "name its GPUs (workloads run --gpus 0,1 or all), and see on the node: exporter check"
        )


def _print(measured: Report, form: Format) -> None:
    from analyzer.output import documents as formats
    from analyzer.output.sections import run as tables

    if form is Format.TABLE:
        tables.console().print(tables.report_table(measured))
    elif form is Format.CSV:
        print(formats.report_csv(measured))
    else:
        write = formats.as_json if form is Format.JSON else formats.as_yaml
        print(write(formats.document(measured)))


def _found(chosen: Source, asked: str | Asked, since_s: float) -> tuple[RunFrames, Callable[[Report], Report]]:
    """A run's frames, or a range's, and what completes the report."""
    if isinstance(asked, str):
        from analyzer.sources.runs import runs as stored

        return stored.load(chosen, asked, since_s, stored.Clock(time.time, time.sleep), say), lambda report: report
    from analyzer.assess import untagged as ranged
    from analyzer.sources.untagged import load as loaded

    found = loaded.load(chosen, asked, say)
    return found.frames, lambda report: ranged.told(
        ranged.widened(report, found.work_limits), found.findings, found.cut, found.spacing_s
    )


def _calibrations(path: Path) -> tuple[Calibration, ...]:
    from analyzer.energy.calibration import CalibrationError, parse

    try:
        return parse(path.read_text(encoding="utf-8-sig"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise typer.BadParameter(f"--calibration: cannot read {path}: {reason}") from error
    except CalibrationError as error:
        raise typer.BadParameter(f"--calibration: {error}") from error


def _write_files(
    folder: Path, measured: Report, frames: RunFrames, for_charts: pd.DataFrame, others: dict[str, bytes]
) -> None:
    from analyzer.output import documents as formats
    from analyzer.output import timeseries
    from analyzer.output.html import page as html
    from analyzer.output.plots import run as plots

    table = timeseries.timeseries(frames, measured)
    picture = plots.picture(measured, table)
    contents = {
        "report.html": html.page(measured, frames, for_charts, picture).encode(),
        "report.png": picture,
        "timeseries.csv": table.to_csv(index=False).encode(),
        "metrics.yml": f"{formats.as_yaml(formats.document(measured))}\n".encode(),
    }
    write_into(folder, contents | others)
