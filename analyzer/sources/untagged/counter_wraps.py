"""RAPL's registers as they stand: they begin again at 0 after their range, which looks like a restart. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from analyzer.energy.checks import Finding
from analyzer.model.samples import FloatArray, Samples
from analyzer.sources.downsample import near
from analyzer.sources.untagged.meters import Meter

ZONES = {"cpu": "package", "dram": "dram"}
_PLAUSIBLE = 3.0
"""A step over a wrap has at most so many times the highest power of the other steps; else it was a restart."""


@dataclass(frozen=True, slots=True, eq=False)
class Repaired:
    """`wraps` and `restarts` are the times of falls that were bridged, and of those that were not."""

    series: Samples
    wraps: FloatArray
    restarts: FloatArray


def repaired(counter: Samples, range_j: float) -> Repaired:
    steps_j, spans_s = np.diff(counter.value), np.diff(counter.t)
    fell = steps_j < 0
    rates_w = steps_j[~fell] / spans_s[~fell]
    highest_w = float(rates_w.max()) if len(rates_w) else np.inf
    over_j = steps_j + range_j
    wrapped = fell & (over_j >= 0) & (over_j <= _PLAUSIBLE * max(highest_w, 1.0) * spans_s)
    lifted = np.concatenate([[0.0], np.where(wrapped, range_j, 0.0).cumsum()])[: len(counter)]
    at_s = counter.t[1:]
    return Repaired(Samples(counter.t, counter.value + lifted, counter.exact), at_s[wrapped], at_s[fell & ~wrapped])


def unwrapped(meter: Meter, ranges_j: Mapping[str, float], start_s: float, end_s: float) -> tuple[Meter, list[Finding]]:
    """`ranges_j` by zone. A meter whose counters do not wrap comes back as it is."""
    counter = meter.counter
    if not meter.schema.wraps or len(counter) < 2:
        return meter, []
    zone = ZONES[meter.component]
    range_j = ranges_j.get(zone)
    if range_j is None:
        falls = int((np.diff(counter.value)[(counter.t[1:] > start_s) & (counter.t[1:] <= end_s)] < 0).sum())
        return meter, [_unrepaired(meter, zone, falls)] if falls else []
    mended = repaired(counter, range_j)
    key = next(key for key, series in meter.series.items() if series is counter)
    findings = _mended_findings(meter, mended, range_j, start_s, end_s)
    return replace(meter, series={**meter.series, key: mended.series}), findings


def _mended_findings(meter: Meter, mended: Repaired, range_j: float, start_s: float, end_s: float) -> list[Finding]:
    wraps = int(((mended.wraps > start_s) & (mended.wraps <= end_s)).sum())
    found = []
    if wraps:
        text = f"its RAPL counter began again after {range_j:,.0f} J, {_times(wraps)}; that is bridged"
        found.append(Finding("note", "rapl_wrap", meter.name, text))
    spans_s, steps_j = np.diff(mended.series.t), np.diff(mended.series.value)
    rising = steps_j > 0
    highest_w = float((steps_j[rising] / spans_s[rising]).max()) if rising.any() else 0.0
    between = (mended.series.t[1:] > start_s) & (mended.series.t[:-1] < end_s)
    if meter.counter.exact:  # elsewhere samples were left out, though none around a fall
        between &= near(mended.series.t[1:], (start_s, end_s)) & near(mended.series.t[:-1], (start_s, end_s))
    longest_s = float(spans_s[between].max()) if between.any() else 0.0
    if highest_w * longest_s > range_j / 2:
        text = (
            f"its RAPL counter begins again every {range_j / highest_w:.0f} s at {highest_w:.0f} W, and samples are up "
            f"to {longest_s:.0f} s apart: a wrap can have gone unseen; scrape more often"
        )
        found.append(Finding("warning", "rapl_wrap_unseen", meter.name, text))
    return found


def _unrepaired(meter: Meter, zone: str, falls: int) -> Finding:
    text = (
        f"its RAPL counter fell {_times(falls)}: where that was a wrap energy is lost that nobody can see from here, "
        f"so that its energy is too low; give --rapl-range-joules {zone}=R, where R is max_energy_range_uj / 1e6 of "
        "the zone in /sys/class/powercap/intel-rapl:*"
    )
    return Finding("warning", "rapl_wrap", meter.name, text)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
