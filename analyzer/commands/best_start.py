"""`analyzer best-start`: when to start a run within the forecast so that it emits least."""

from __future__ import annotations

import math
import time
from enum import StrEnum
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
)
from analyzer.output.form import Format

if TYPE_CHECKING:
    from analyzer.carbon.best_start import Forecast, Profile

_LONGEST_H = 1_000.0


class Basis(StrEnum):
    AVERAGE = "average"
    MARGINAL = "marginal"


@reads
def best_start(
    connection: Connection,
    run_id: Annotated[str | None, typer.Option(help="A run like the one to start: its energy over its time.")] = None,
    energy_kwh: Annotated[float | None, typer.Option(min=0, metavar="KWH", help="Else: what it will draw…")] = None,
    hours: Annotated[float | None, typer.Option(metavar="H", help="… and for how long, evenly.")] = None,
    within: Annotated[str, typer.Option(help="The latest start: 12h, 2d.")] = "48h",
    step: Annotated[str, typer.Option(help="Starts to look at, besides now: 15m, 1h.")] = "30m",
    forecast: Annotated[
        Path | None, typer.Option(help="CSV of time,g_per_kwh instead of the forecast that the source holds.")
    ] = None,
    basis: Annotated[Basis, typer.Option(help="Of the intensity.")] = Basis.AVERAGE,
    region: Annotated[str | None, typer.Option(help="Where the source has forecasts for several.")] = None,
    form: FormatOption = Format.TABLE,
    since: SinceOption = DEFAULT_SINCE,
) -> None:
    """The start of least emissions within the forecast, for a run of this length."""
    within_s, step_s, since_s = seconds(within, "--within"), seconds(step, "--step"), seconds(since)
    if within_s / step_s > 20_000:
        raise typer.BadParameter("--step is too short for --within: 20,000 starts at most")
    if forecast is not None and region is not None:
        raise typer.BadParameter("--region chooses among the source's forecasts: leave it out with --forecast")
    given = _given(run_id, energy_kwh, hours)
    from analyzer.carbon import best_start as starts
    from analyzer.output.studies import best_start as best_start_text
    from analyzer.output.view import show

    now_s = time.time()
    profile = given or _of_run(connection, str(run_id), since_s)
    try:
        found = starts.starts(_forecast(connection, forecast, basis, region, now_s), profile, now_s, within_s, step_s)
    except starts.NoStartError as error:
        fail(f"no start to advise: {error}; give a longer forecast (--forecast FILE), or a shorter run")
    show(best_start_text.view(found), form)


def _given(run_id: str | None, energy_kwh: float | None, hours: float | None) -> Profile | None:
    """None where it is the run that tells."""
    if run_id is not None:
        if energy_kwh is not None or hours is not None:
            raise typer.BadParameter("--run-id tells energy and hours: leave out --energy-kwh and --hours, or the run")
        return None
    if energy_kwh is None or hours is None:
        raise typer.BadParameter("give --run-id of a run like it, or both --energy-kwh and --hours")
    if not 0 < energy_kwh < math.inf:
        raise typer.BadParameter(f"--energy-kwh is above 0, not {energy_kwh:g}")
    if not 0 < hours <= _LONGEST_H:
        raise typer.BadParameter(f"--hours is more than 0 and at most {_LONGEST_H:g}")
    from analyzer.carbon.best_start import Profile
    from analyzer.model.interval import JOULES_PER_KWH

    return Profile((hours * 3_600,), (energy_kwh * JOULES_PER_KWH,), "given, drawn evenly")


def _of_run(connection: Connection, run_id: str, since_s: float) -> Profile:
    from analyzer.assess import run as assess
    from analyzer.carbon import power_profile
    from analyzer.sources.carbon import restating
    from analyzer.sources.runs import runs

    with connection.open() as chosen:
        frames = runs.load(chosen, run_id, since_s, runs.Clock(time.time, time.sleep), say)
        frames = restating.with_cpu_counters(chosen, frames)
    try:
        found = power_profile.profile(frames, assess.assess(frames))
    except assess.NoEnergyError as error:
        fail(f"{error}: it tells nothing of the next one; give --energy-kwh and --hours")
    return found or fail(f"run {run_id} has lasted no time; give --energy-kwh and --hours")


def _forecast(connection: Connection, path: Path | None, basis: Basis, region: str | None, now_s: float) -> Forecast:
    from analyzer.sources.carbon import forecast as carbon_forecast

    if path is not None:
        return carbon_forecast.from_file(path, basis)
    with connection.open() as chosen:
        return carbon_forecast.newest(chosen, now_s, basis, region)
