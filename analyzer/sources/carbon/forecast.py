"""The forecast that an exporter publishes: the intensity so many hours after a scrape, 1 to 48."""

from __future__ import annotations

from pathlib import Path

from analyzer.carbon.best_start import Forecast
from analyzer.carbon.intensity import PastSlot
from analyzer.model.samples import Row, last
from analyzer.sources.base import Source
from analyzer.sources.carbon import file as carbon_file
from analyzer.sources.error import SourceError
from exporter.contract import metrics as m

_LOOK_BACK_S = 86_400.0
_AHEAD_S = 120.0
_HOUR_S = 3_600.0
_AROUND_S = 60.0
_REMEDY = "does its --carbon.provider forecast? see: exporter check; or give --forecast FILE"


def newest(source: Source, now_s: float, basis: str, region: str | None) -> Forecast:
    """Of the newest scrape. An hour's value holds from half an hour before to half an hour after it.

    Raises SourceError.
    """
    matchers = {"basis": basis} | ({"region": region} if region else {})
    first = source.fetch(
        [m.CARBON_FORECAST], {**matchers, "horizon_hours": "1"}, now_s - _LOOK_BACK_S, now_s + _AHEAD_S
    )
    seen = last(first, m.CARBON_FORECAST)
    if not seen:
        where = f" for {region}" if region else ""
        raise SourceError(f"{source.name} has no {basis} forecast{where} of the last 24 h", _REMEDY)
    places = sorted({row.labels["region"] for row in seen})
    if len(places) > 1:
        raise SourceError(f"{source.name} has forecasts for {', '.join(places)}", "choose one with --region")
    row = max(seen, key=lambda row: row.t)
    return _of_scrape(source, row, basis)


def _of_scrape(source: Source, row: Row, basis: str) -> Forecast:
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


def from_file(path: Path, basis: str) -> Forecast:
    """Raises SourceError."""
    found = {past.basis: past for past in carbon_file.read(path)}
    if basis not in found:
        there = ", ".join(found)
        raise SourceError(f"{path} has no {basis} intensities, only {there}", f"ask for them: --basis {there}")
    return Forecast(path.name, "", basis, found[basis].slots)
