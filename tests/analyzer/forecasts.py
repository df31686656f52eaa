"""Series of a carbon intensity forecast, as an exporter exports them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wattline.contract import metrics as m

NIGHT_FORECAST = [300.0] * 10 + [90.0] * 6 + [300.0] * 33
"""Intensity of each hour, from the current one."""


def forecast_series(by_hour: Sequence[float], region="GB", basis="average") -> Iterable[tuple]:
    """Forecast for 1 to 48 hours from now; the first of `by_hour` is the current hour."""
    for hour, grams in enumerate(by_hour):
        if hour:
            labels = {
                "region": region,
                "provider": "gb",
                "basis": basis,
                "horizon_hours": str(hour),
            }
            yield m.CARBON_FORECAST, labels, grams


def current_intensity(now_s: float, grams: float, region="GB", basis="average") -> Iterable[tuple]:
    """Current intensity, from a response ten minutes ago."""
    labels = {"region": region, "provider": "gb", "basis": basis, "quality": "forecast"}
    yield m.CARBON_INTENSITY, labels, grams
    if region == "GB":
        yield m.CARBON_FETCHED_TIMESTAMP, {"provider": "gb", "basis": basis}, now_s - 600
