"""Metrics of carbon intensities: current values, their age and forecasts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from exporter.contract.metrics import (
    CARBON_FETCHED_TIMESTAMP,
    CARBON_FORECAST,
    CARBON_INTENSITY,
    CARBON_INTENSITY_TIMESTAMP,
)
from exporter.model import Reading
from exporter.sources.carbon.feed import CarbonFeed

HORIZONS_H = range(1, 49)


def carbon_readings(feeds: Iterable[CarbonFeed], now_s: float) -> Iterator[Reading]:
    for feed in feeds:
        slot = feed.slot_at(now_s)
        if slot:
            labels = (slot.region, slot.provider, slot.basis, slot.quality)
            yield Reading(CARBON_INTENSITY, labels, slot.grams_per_kwh)
            yield Reading(CARBON_INTENSITY_TIMESTAMP, labels, slot.begin_s)
        if feed.fetched_s is not None and feed.provider.name != "static":
            yield Reading(CARBON_FETCHED_TIMESTAMP, (feed.provider.name, feed.basis), feed.fetched_s)
        for hours in HORIZONS_H:
            future = feed.forecast_at(now_s + hours * 3_600)
            if future:
                horizon = (future.region, future.provider, future.basis, str(hours))
                yield Reading(CARBON_FORECAST, horizon, future.grams_per_kwh)
