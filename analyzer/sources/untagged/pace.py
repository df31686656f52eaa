"""How old scraped values can be, and which of them are the same reading again. Pure.

An exporter that reads its sensors every 30 s shows each reading to two scrapes of 15 s. The first scrape that shows a
reading is at most one scrape late; the reading was itself up to an interval old when the exporter took it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analyzer.model.samples import Samples, median_spacing_s
from analyzer.sources.downsample import near
from analyzer.sources.untagged.schemas import Schema
from exporter.contract import metrics as m

_REPEATS = 1.5
"""A counter that changes less often than every so many scrapes is shown from a cache."""
_COUNTERS, _POWERS = (m.GPU_ENERGY.name, m.CPU_ENERGY.name), (m.GPU_POWER.name, m.CPU_POWER.name)

SeriesByKey = Mapping[tuple[str, tuple[tuple[str, str], ...]], Samples]


@dataclass(frozen=True, slots=True, eq=False)
class Paced:
    series: SeriesByKey
    age_s: float
    cached_s: float | None


def paced(schema: Schema, series: SeriesByKey, window: tuple[float, float]) -> Paced:
    """The series of one device, energy and power without readings that came again.

    Of a series that was thinned all samples are there around the edges of `window`; its power stays as it is, as what
    is exact of it is not of those that are left.
    """
    by_metric = {name: found for (name, _), found in series.items()}
    counter = next((by_metric[name] for name in _COUNTERS if name in by_metric), None)
    power = next((by_metric[name] for name in _POWERS if name in by_metric), None)
    shown = counter if counter is not None else power
    spacing_s = median_spacing_s(shown) if shown is not None else None
    if shown is None or spacing_s is None:
        return Paced(series, 2 * schema.refresh_s + schema.late_s, None)
    period_s = _period_s(shown, window) if counter is not None or schema.refresh_s > spacing_s else None
    if period_s is None or period_s <= _REPEATS * spacing_s:
        return Paced(series, 2 * min(spacing_s, schema.refresh_s) + schema.late_s, None)
    thinned = {
        key: first_shown(found, period_s if key[0] in _POWERS else None) if _is_read_again(key[0], found) else found
        for key, found in series.items()
    }
    return Paced(thinned, period_s + spacing_s + schema.late_s, period_s)


def first_shown(series: Samples, at_least_s: float | None) -> Samples:
    """Each reading where it first shows; the first of all may have been there before, and goes.

    With `at_least_s` a value that stays the same is kept that often: power may be the same in truth.
    """
    changed = np.concatenate([[False], np.diff(series.value) != 0])
    if at_least_s is not None:
        newest_s = -np.inf
        for i, t in enumerate(series.t):
            changed[i] |= t - newest_s >= at_least_s
            newest_s = t if changed[i] else newest_s
    return Samples(series.t[changed], series.value[changed], series.exact)


def _is_read_again(name: str, series: Samples) -> bool:
    return name in _COUNTERS or (name in _POWERS and series.exact is None)


def _period_s(series: Samples, window: tuple[float, float]) -> float | None:
    """The median time between changes; None where there are too few to say."""
    whole = near(series.t, window) if series.exact else np.ones(len(series), dtype=bool)
    times, values = series.t[whole], series.value[whole]
    at_s = times[1:][np.diff(values) != 0]
    return float(np.median(np.diff(at_s))) if len(at_s) > 2 else None
