"""`analyzer report`: report of one run, on stdout and as files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    CarbonOption,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    WaitOption,
    duration_option,
)
from wattline_analyzer.core.printing import (
    OutputFormat,
    exit_with_error,
    print_message,
    write_files,
)
from wattline_analyzer.report.compatible.options import (
    RunToolsOption,
    check_out_options,
    compatible_contents,
    compatible_samples,
)
from wattline_analyzer.report.options import RunOrRangeOptions, UserInputOptions, load_restatement

if TYPE_CHECKING:
    from wattline_analyzer.core.devices import Calibration
    from wattline_analyzer.core.recorded_run import RecordedRun
    from wattline_analyzer.core.run_report import Report, UserInputs
    from wattline_analyzer.core.sample_table import SampleTable
    from wattline_analyzer.core.sources.base import SampleSource
    from wattline_analyzer.report.untagged.request import RangeRequest

COMMAND = {
    "name": "report",
    "help": "Report a run or a time range.",
    "group": "Report",
}


@with_option_groups
def report_command(
    run_or_range: RunOrRangeOptions,
    *,
    form: FormatOption = OutputFormat.TABLE,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for report.html, report.png, timeseries.csv and metrics.yml.",
        ),
    ] = None,
    carbon: CarbonOption = None,
    compatible: RunToolsOption = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV or YAML of uuid, gain, offset_watts per GPU, to add calibrated energy.",
        ),
    ] = None,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    inputs: UserInputOptions,
    connection: ConnectionOptions,
) -> None:
    """Report a run or a time range: a table on stdout, and with --out charts and data as files."""
    request = run_or_range.request()
    since_s = duration_option(since)
    check_out_options(compatible, out)
    calibrations = _read_calibrations(calibration) if calibration else ()
    from wattline_analyzer.core.run_report import UserInputs
    from wattline_analyzer.core.runs.samples import fetch_chart_samples

    with connection.open() as source:
        recorded, complete = _load(source, request, since_s, wait=wait)
        recorded, past = load_restatement(inputs, source, recorded)
        chart_samples = (
            None
            if out is None
            else recorded.raw
            if recorded.untagged
            else fetch_chart_samples(source, recorded.raw)
        )
        other_samples = compatible_samples(compatible, source, recorded)
    given = UserInputs(carbon, inputs.pue, inputs.energy_price, past, inputs.hardware, calibrations)
    report = complete(_assess(recorded, given))
    _print_report(report, form)
    if out is not None and chart_samples is not None:
        others = compatible_contents(compatible, report, other_samples)
        _write_report(out, report, recorded, chart_samples, others)


def _assess(recorded: RecordedRun, given: UserInputs) -> Report:
    from wattline_analyzer.report import assess
    from wattline_analyzer.report.calibration import CalibrationError

    try:
        return assess.assess(recorded, given)
    except CalibrationError as error:
        exit_with_error(str(error))
    except assess.NoEnergyError as error:
        exit_with_error(
            f"{error}, or the run began seconds ago; "
            "repeat it with --gpus 0,1 or all, and see exporter check on the node"
        )


def _print_report(report: Report, form: OutputFormat) -> None:
    from wattline_analyzer.core.documents import as_json, as_yaml
    from wattline_analyzer.report.document import report_csv, report_document

    if form is OutputFormat.TABLE:
        from wattline_analyzer.core.terminal import console
        from wattline_analyzer.report.terminal import terminal_report

        console().print(terminal_report(report))
    elif form is OutputFormat.CSV:
        print(report_csv(report))
    else:
        write = as_json if form is OutputFormat.JSON else as_yaml
        print(write(report_document(report)))


def _load(
    source: SampleSource, request: str | RangeRequest, since_s: float, *, wait: bool
) -> tuple[RecordedRun, Callable[[Report], Report]]:
    """Return a run, or a range as one, and the function that completes its report."""
    if isinstance(request, str):
        from wattline_analyzer.core.runs import load
        from wattline_analyzer.core.runs.run_state import reported_requests

        clock = load.Clock(time.time, time.sleep, wait)
        recorded = load.load_run(source, request, since_s, clock, print_message)
        return replace(recorded, requests=reported_requests(source, request)), lambda report: report
    from wattline_analyzer.report import assess_untagged as untagged
    from wattline_analyzer.report.untagged.load import load_range

    found = load_range(source, request, print_message)
    return found.recorded, lambda report: untagged.range_report(report, found.quality)


def _read_calibrations(path: Path) -> tuple[Calibration, ...]:
    from wattline_analyzer.report.calibration import CalibrationError, parse_calibrations

    try:
        return parse_calibrations(path.read_text(encoding="utf-8-sig"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise typer.BadParameter(f"--calibration: cannot read {path}: {reason}") from error
    except CalibrationError as error:
        raise typer.BadParameter(f"--calibration: {error}") from error


def _write_report(
    folder: Path,
    report: Report,
    recorded: RecordedRun,
    chart_samples: SampleTable,
    others: dict[str, bytes],
) -> None:
    from wattline_analyzer.core.documents import as_yaml
    from wattline_analyzer.report.document import report_document
    from wattline_analyzer.report.html.page import html_page
    from wattline_analyzer.report.plot import run_plot
    from wattline_analyzer.report.timeseries import power_csv, power_samples

    power = power_samples(recorded, report)
    plot = run_plot(report, power, chart_samples)
    contents = {
        "report.html": html_page(report, recorded, chart_samples, plot).encode(),
        "report.png": plot,
        "timeseries.csv": power_csv(power, report.started_at_s).encode(),
        "metrics.yml": f"{as_yaml(report_document(report))}\n".encode(),
    }
    write_files(folder, contents | others)
