"""`analyzer best-start`: start time of a run with the lowest emissions within the forecast."""

from __future__ import annotations

import contextlib
import math
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattline.command_line import with_option_groups
from wattline_analyzer.core.options import (
    DEFAULT_SINCE,
    ConnectionOptions,
    FormatOption,
    SinceOption,
    WaitOption,
    duration_option,
)
from wattline_analyzer.core.printing import OutputFormat, exit_with_error, print_message

if TYPE_CHECKING:
    from wattline_analyzer.carbon.best_start import Forecast, Profile
    from wattline_analyzer.core.sources.base import SampleSource

COMMAND = {
    "name": "best-start",
    "help": "Find the start time with the lowest emissions.",
    "group": "Compare and decide",
}

_LONGEST_H = 1_000.0


class Basis(StrEnum):
    AVERAGE = "average"
    MARGINAL = "marginal"


@with_option_groups
def best_start_command(
    *,
    run_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="ID of a past run that is like the one to start: its energy over time.",
        ),
    ] = None,
    energy_kwh: Annotated[
        float | None,
        typer.Option(min=0, metavar="KWH", help="Energy of the run, in place of --run-id."),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            metavar="H", help="Duration of the run, with --energy-kwh; its power is constant."
        ),
    ] = None,
    within: Annotated[str, typer.Option(metavar="TIME", help="Latest start: 12h, 2d.")] = "48h",
    step: Annotated[
        str, typer.Option(metavar="TIME", help="Time between the starts to compare: 15m, 1h.")
    ] = "30m",
    forecast: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="CSV of time,g_per_kwh, in place of the source's forecast."
        ),
    ] = None,
    basis: Annotated[
        Basis, typer.Option(metavar="|".join(Basis), help="Basis of the carbon intensity.")
    ] = Basis.AVERAGE,
    region: Annotated[
        str | None,
        typer.Option(metavar="REGION", help="Region, if the source has forecasts of several."),
    ] = None,
    form: FormatOption = OutputFormat.TABLE,
    since: SinceOption = DEFAULT_SINCE,
    wait: WaitOption = True,
    connection: ConnectionOptions,
) -> None:
    """Find the start with the lowest emissions within the forecast."""
    within_s = duration_option(within, "--within")
    step_s = duration_option(step, "--step")
    since_s = duration_option(since)
    if within_s / step_s > 20_000:
        raise typer.BadParameter(
            "--step is too short for --within: at most 20,000 starts are compared"
        )
    if forecast is not None and region is not None:
        raise typer.BadParameter(
            "--region selects one of the source's forecasts: leave it out with --forecast"
        )
    constant = _constant_profile(run_id, energy_kwh, hours)
    from wattline_analyzer.best_start.output import best_start_output
    from wattline_analyzer.carbon import best_start as starts
    from wattline_analyzer.core.printing import print_output

    now_s = time.time()
    with contextlib.nullcontext() if constant and forecast else connection.open() as source:
        profile = constant or _profile_of_run(source, str(run_id), since_s, wait=wait)
        intensities = _forecast(source, forecast, basis, region, now_s)
    try:
        result = starts.starts(intensities, profile, now_s, within_s, step_s)
    except starts.NoStartError as error:
        exit_with_error(
            f"no start found: {error}; give a longer forecast (--forecast FILE), or a shorter run"
        )
    print_output(best_start_output(result), form)


def _constant_profile(
    run_id: str | None, energy_kwh: float | None, hours: float | None
) -> Profile | None:
    """Return the profile of --energy-kwh and --hours, None with --run-id."""
    if run_id is not None:
        if energy_kwh is not None or hours is not None:
            raise typer.BadParameter(
                "--run-id excludes --energy-kwh and --hours: give the one or the others"
            )
        return None
    if energy_kwh is None or hours is None:
        raise typer.BadParameter("give --run-id of a similar run, or both --energy-kwh and --hours")
    if not 0 < energy_kwh < math.inf:
        raise typer.BadParameter(f"--energy-kwh: expected more than 0, not {energy_kwh:g}")
    if not 0 < hours <= _LONGEST_H:
        raise typer.BadParameter(f"--hours: expected more than 0 and at most {_LONGEST_H:g}")
    from wattline.figures import JOULES_PER_KWH
    from wattline_analyzer.carbon.best_start import Profile

    return Profile((hours * 3_600,), (energy_kwh * JOULES_PER_KWH,), "given, drawn evenly")


def _profile_of_run(
    source: SampleSource | None, run_id: str, since_s: float, *, wait: bool
) -> Profile:
    from wattline_analyzer.carbon.fetch import with_energy_counters
    from wattline_analyzer.core.runs.load import Clock, load_run
    from wattline_analyzer.report import assess

    assert source is not None
    recorded = load_run(source, run_id, since_s, Clock(time.time, time.sleep, wait), print_message)
    recorded = with_energy_counters(source, recorded)
    try:
        profile = assess.run_power_profile(recorded, assess.assess(recorded))
    except assess.NoEnergyError as error:
        exit_with_error(f"{error}; give --energy-kwh and --hours")
    return profile or exit_with_error(
        f"run {run_id} has no duration; give --energy-kwh and --hours"
    )


def _forecast(
    source: SampleSource | None, path: Path | None, basis: Basis, region: str | None, now_s: float
) -> Forecast:
    from wattline_analyzer.carbon.fetch import fetch_forecast, read_forecast_file

    if path is not None:
        return read_forecast_file(path, basis)
    assert source is not None
    return fetch_forecast(source, now_s, basis, region)
