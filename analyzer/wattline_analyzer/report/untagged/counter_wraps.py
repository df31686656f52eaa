"""Unwrapping of raw RAPL counters, which restart at 0 after their range."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from wattline.counter_arrays import counter_steps
from wattline.counters import CounterLimits
from wattline.figures import short_joules_text
from wattline_analyzer.core.downsample import near_edges
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.samples import FloatArray, Samples
from wattline_analyzer.report.untagged.meters import Meter

ZONES = {"cpu": "package", "dram": "dram"}
_PLAUSIBLE = 3.0
"""Maximum power over a wrap, in multiples of the highest power of the other steps; above it is a
restart.
"""


@dataclass(frozen=True, slots=True, eq=False)
class UnwrappedCounter:
    """Counter without wraps and late samples, which falls only at restarts; times of its wraps."""

    series: Samples
    wraps_s: FloatArray


def unwrap_counter(counter: Samples, range_j: float) -> UnwrappedCounter:
    """Add the range at each wrap; other falls are restarts, or late samples, which are left out."""
    steps_j = np.diff(counter.value)
    rising = steps_j >= 0
    rates_w = steps_j[rising] / np.diff(counter.t)[rising]
    most_w = _PLAUSIBLE * max(float(rates_w.max()), 1.0) if len(rates_w) else math.inf
    steps = counter_steps(counter.t, counter.value, CounterLimits(range_j, most_w))
    t = counter.t[steps.kept]
    unwrapped_j = counter.value[steps.kept] + steps.wrapped_amount(range_j)
    series = Samples(t, unwrapped_j, counter.exact)
    return UnwrappedCounter(series, t[steps.wrapped])


def unwrap_meter(
    meter: Meter, ranges_j: Mapping[str, float], start_s: float, end_s: float
) -> tuple[Meter, list[Finding]]:
    """Return the meter with a monotonic counter, and findings; `ranges_j` are the counters' ranges
    by zone.
    """
    counter = meter.counter
    if not meter.schema.wraps or len(counter) < 2:
        return meter, []
    zone = ZONES[meter.component]
    range_j = ranges_j.get(zone)
    if range_j is None:
        falls = int(
            (np.diff(counter.value)[(counter.t[1:] > start_s) & (counter.t[1:] <= end_s)] < 0).sum()
        )
        return meter, [_unknown_range_finding(meter, zone, falls)] if falls else []
    unwrapped = unwrap_counter(counter, range_j)
    key = next(key for key, series in meter.series.items() if series is counter)
    findings = _wrap_findings(meter, unwrapped, range_j, start_s, end_s)
    return replace(meter, series={**meter.series, key: unwrapped.series}), findings


def _wrap_findings(
    meter: Meter, unwrapped: UnwrappedCounter, range_j: float, start_s: float, end_s: float
) -> list[Finding]:
    wraps = int(((unwrapped.wraps_s > start_s) & (unwrapped.wraps_s <= end_s)).sum())
    found = []
    if wraps:
        text = (
            f"its RAPL counter wrapped {_times(wraps)} at {short_joules_text(range_j)}, which is "
            "corrected"
        )
        found.append(Finding("note", "rapl_wrap", meter.name, text))
    spans_s = np.diff(unwrapped.series.t)
    steps_j = np.diff(unwrapped.series.value)
    rising = steps_j > 0
    highest_w = float((steps_j[rising] / spans_s[rising]).max()) if rising.any() else 0.0
    between = (unwrapped.series.t[1:] > start_s) & (unwrapped.series.t[:-1] < end_s)
    if meter.counter.exact:  # elsewhere the series is downsampled, but not around a fall
        between &= near_edges(unwrapped.series.t[1:], (start_s, end_s)) & near_edges(
            unwrapped.series.t[:-1], (start_s, end_s)
        )
    longest_s = float(spans_s[between].max()) if between.any() else 0.0
    if highest_w * longest_s > range_j / 2:
        text = (
            f"its RAPL counter wraps every {range_j / highest_w:.0f} s at {highest_w:.0f} W, and "
            "samples are up to "
            f"{longest_s:.0f} s apart: wraps may be missed and the energy too low; use a shorter "
            "scrape interval"
        )
        found.append(Finding("warning", "rapl_wrap_unseen", meter.name, text))
    return found


def _unknown_range_finding(meter: Meter, zone: str, falls: int) -> Finding:
    text = (
        f"its RAPL counter fell {_times(falls)}: if that was a wrap, the energy is too low by the "
        "counter's range; "
        f"give --rapl-range-joules {zone}=R, where R is max_energy_range_uj / 1e6 of the zone in "
        "/sys/class/powercap/intel-rapl:*"
    )
    return Finding("warning", "rapl_wrap", meter.name, text)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
