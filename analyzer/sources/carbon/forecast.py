"""Forecasts of carbon intensity, from an exporter's series or a file."""

from __future__ import annotations

from pathlib import Path

from analyzer.carbon.best_start import Forecast
from analyzer.model.emissions import PastSlot
from analyzer.model.samples import Row, last
from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.carbon import file as carbon_file
from exporter.contract import metrics as m

_LOOK_BACK_S = 86_400.0
_AHEAD_S = 120.0
_HOUR_S = 3_600.0
_AROUND_S = 60.0
_REMEDY = "check that its --carbon.provider has forecasts (exporter check), or give --forecast FILE"


def fetch_forecast(source: SampleSource, now_s: float, basis: str, region: str | None) -> Forecast:
    """Return the forecast of the newest scrape, for 1 to 48 hours after it. Raises FetchError.

    The value of an hour applies from half an hour before to half an hour after it.
    """
    matchers = {"basis": basis} | ({"region": region} if region else {})
    first = source.fetch(
        [m.CARBON_FORECAST], {**matchers, "horizon_hours": "1"}, now_s - _LOOK_BACK_S, now_s + _AHEAD_S
    )
    rows = last(first, m.CARBON_FORECAST)
    if not rows:
        where = f" for {region}" if region else ""
        raise FetchError(f"{source.name} has no {basis} forecast{where} of the last 24 h", _REMEDY)
    regions = sorted({row.labels["region"] for row in rows})
    if len(regions) > 1:
        raise FetchError(f"{source.name} has forecasts for {', '.join(regions)}", "select one with --region")
    row = max(rows, key=lambda row: row.t)
    return _of_scrape(source, row, basis)


def _of_scrape(source: SampleSource, row: Row, basis: str) -> Forecast:
    where = {"basis": basis, "provider": row.labels["provider"]}
    where |= {"instance": row.instance} if row.instance else {}
    metrics = [m.CARBON_FORECAST, m.CARBON_INTENSITY, m.CARBON_FETCHED_TIMESTAMP]
    frame = source.fetch(metrics, where, row.t - _AROUND_S, row.t)
    frame = frame[frame["t"] == row.t]
    region = row.labels["region"]
    by_hour = {int(one.labels["horizon_hours"]): one.value for one in last(frame, m.CARBON_FORECAST, region=region)}
    present = last(frame, m.CARBON_INTENSITY, region=region)
    if present:
        by_hour[0] = present[0].value
    fetched = last(frame, m.CARBON_FETCHED_TIMESTAMP)
    slots = tuple(
        PastSlot(
            row.t + max(hour - 0.5, 0.0) * _HOUR_S,
            row.t + (hour + 0.5) * _HOUR_S,
            grams,
            "forecast",
        )
        for hour, grams in sorted(by_hour.items())
    )
    made_s = fetched[0].value if fetched else row.t
    return Forecast(row.labels["provider"], region, basis, slots, made_s)


def read_forecast_file(path: Path, basis: str) -> Forecast:
    """Return the forecast in a CSV file. Raises FetchError."""
    found = {past.basis: past for past in carbon_file.read_carbon_file(path)}
    if basis not in found:
        there = ", ".join(found)
        raise FetchError(f"{path} has no {basis} intensities, only {there}", f"give --basis {there}")
    return Forecast(path.name, "", basis, found[basis].slots)
