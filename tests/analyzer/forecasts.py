"""What an exporter shows of a provider's forecast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exporter.contract import metrics as m

NIGHT = [300.0] * 10 + [90.0] * 6 + [300.0] * 33
"""From the present on, an intensity an hour."""


def published(by_hour: Sequence[float], region="GB", basis="average") -> Iterable[tuple]:
    """What is forecast for 1 to 48 hours from now; the first of `by_hour` is the present's."""
    for hour, grams in enumerate(by_hour):
        if hour:
            where = {"region": region, "provider": "gb", "basis": basis, "horizon_hours": str(hour)}
            yield m.CARBON_FORECAST, where, grams


def in_force(now_s: float, grams: float, region="GB", basis="average") -> Iterable[tuple]:
    """The present slot, and that the provider answered ten minutes ago."""
    labels = {"region": region, "provider": "gb", "basis": basis, "quality": "forecast"}
    yield m.CARBON_INTENSITY, labels, grams
    if region == "GB":
        yield m.CARBON_FETCHED_TIMESTAMP, {"provider": "gb", "basis": basis}, now_s - 600
