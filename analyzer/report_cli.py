"""`analyzer report`: one run, on stdout and as files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.options import DEFAULT_SINCE, Connection, FormatOption, SinceOption, fail, reads, say, seconds, write_into
from analyzer.report.form import Format

if TYPE_CHECKING:
    from analyzer.measured import Report
    from analyzer.series import RunFrames


@reads
def report(  # typer makes each argument an option
    connection: Connection,
    run_id: Annotated[str, typer.Option(help="The run; see: analyzer runs.")],
    form: FormatOption = Format.TABLE,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html, report.png, timeseries.csv and metrics.yml.")
    ] = None,
    carbon: Annotated[
        float | None, typer.Option(min=0, metavar="G/KWH", help="Add emissions at this intensity, gCO2eq/kWh.")
    ] = None,
    since: SinceOption = DEFAULT_SINCE,
) -> None:
    """One run: a table on stdout, and files in the folder of --out."""
    since_s = seconds(since)
    from analyzer import assess  # noqa: PLC0415  # pandas takes half a second
    from analyzer.given import Given  # noqa: PLC0415
    from analyzer.report import formats, tables  # noqa: PLC0415
    from analyzer.sources import runs as stored  # noqa: PLC0415

    with connection.open() as chosen:
        frames = stored.load(chosen, run_id, since_s, stored.Clock(time.time, time.sleep), say)
    try:
        measured = assess.assess(frames, Given(grams_per_kwh=carbon))
    except assess.NoEnergyError as error:
        fail(
            f"{error}: no process of it was seen on a GPU and no CPU could be read, or the node has neither, "
            "or it began seconds ago; "
            "name its GPUs (workloads run --gpus 0,1 or all), and see on the node: exporter check"
        )
    if form is Format.TABLE:
        tables.console().print(tables.report_table(measured))
    elif form is Format.CSV:
        print(formats.report_csv(measured))
    else:
        write = formats.as_json if form is Format.JSON else formats.as_yaml
        print(write(formats.document(measured)))
    if out is not None:
        _write_files(out, measured, frames)


def _write_files(folder: Path, measured: Report, frames: RunFrames) -> None:
    from analyzer.report import formats, html, plots, timeseries  # noqa: PLC0415  # matplotlib takes a second

    table = timeseries.timeseries(frames, measured)
    contents = {
        "report.html": html.page(measured, table).encode(),
        "report.png": plots.picture(measured, table),
        "timeseries.csv": table.to_csv(index=False).encode(),
        "metrics.yml": f"{formats.as_yaml(formats.document(measured))}\n".encode(),
    }
    write_into(folder, contents)
