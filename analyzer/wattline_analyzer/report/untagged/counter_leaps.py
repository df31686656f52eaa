"""Repair of GPU energy counters with values that no GPU can reach."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from wattline.contract import metrics as m
from wattline.figures import short_joules_text
from wattline_analyzer.core.integrate import power_range
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.samples import Samples
from wattline_analyzer.report.untagged.meters import Meter

_MOST_W = 2_000.0
"""Power that no GPU reaches; scraped power may miss every peak."""
_AHEAD = 4
"""Number of later samples of which one must continue the counter; a value in between that does not
is a fault.
"""


@dataclass(frozen=True, slots=True, eq=False)
class RepairedCounter:
    """Counter without faulty samples and leaps; `doubt_j` is the energy that may be missing because
    of the leaps.

    `leaps_j` are the removed rises, by the time of the sample after them.
    """

    series: Samples
    faulty: int
    leaps_j: Mapping[float, float]
    doubt_j: float


def repair_counter(
    counter: Samples, power: Samples, highest_w: float, age_s: float
) -> RepairedCounter:
    """Remove samples that contradict both neighbours, and rises above twice `highest_w` and above
    any GPU's power.

    A removed rise is replaced by the integral of `power` over that time, limited to `highest_w`.
    `age_s` is the maximum age of a value.
    """
    most_w = max(2 * highest_w, _MOST_W)
    kept = _consistent(counter, most_w, age_s)
    t = counter.t[kept]
    value_j = counter.value[kept]
    steps_j = np.diff(value_j)
    spans_s = np.diff(t)
    leaps = np.flatnonzero(steps_j > most_w * (spans_s + age_s))
    usual_j = [_power_energy(power, float(t[at]), float(t[at + 1]), highest_w) for at in leaps]
    removed_j = np.zeros(len(t))
    removed_j[leaps + 1] = steps_j[leaps] - usual_j
    series = Samples(t, value_j - removed_j.cumsum(), counter.exact)
    leaps_j = {float(t[at + 1]): float(removed_j[at + 1]) for at in leaps}
    doubt_j = math.fsum(highest_w * float(spans_s[at]) for at in leaps)
    return RepairedCounter(series, len(counter) - len(kept), leaps_j, doubt_j)


def _consistent(counter: Samples, most_w: float, age_s: float) -> list[int]:
    """Return the indices without faulty samples: the counter continues after them as if they were
    not there.
    """

    def continues(before: int, after: int) -> bool:
        rise_j = counter.value[after] - counter.value[before]
        return bool(0 <= rise_j <= most_w * (counter.t[after] - counter.t[before] + age_s))

    kept: list[int] = []
    for at in range(len(counter)):
        if kept and not continues(kept[-1], at):
            following = range(at + 1, min(at + 1 + _AHEAD, len(counter)))
            if any(continues(kept[-1], later) and not continues(at, later) for later in following):
                continue
        kept.append(at)
    return kept


def _power_energy(power: Samples, start_s: float, end_s: float, highest_w: float) -> float:
    """Return the integral of the power between two times, with the nearest samples at its ends; 0
    without samples.
    """
    if not len(power):
        return 0.0
    inner = power.between(start_s, end_s)
    t = np.concatenate([[start_s], inner.t, [end_s]])
    watts = np.minimum(np.interp(t, power.t, power.value), highest_w)
    return float((np.diff(t) * (watts[1:] + watts[:-1]) / 2).sum())


def repair_meter(meter: Meter, start_s: float, end_s: float) -> tuple[Meter, list[Finding], float]:
    """Return the meter with a repaired counter, findings, and the energy in the range that is in
    doubt.
    """
    counter = meter.counter
    limit = meter.samples(m.GPU_POWER_LIMIT)
    possible = power_range(meter.power, float(limit.value.max()) if len(limit) else None)
    if meter.component != "gpu" or len(counter) < 2 or possible is None or possible.high_w <= 0:
        return meter, [], 0.0
    repaired = repair_counter(counter, meter.power, possible.high_w, meter.age_s)
    within_j = {t: joules for t, joules in repaired.leaps_j.items() if start_s <= t <= end_s}
    excess_j = _excess_energy(
        repaired.series.between(start_s, end_s), meter.power, possible.high_w, meter.age_s
    )
    if not repaired.faulty and not repaired.leaps_j:
        return meter, [], excess_j
    series = {
        key: repaired.series if key[0] == m.GPU_ENERGY.name else found
        for key, found in meter.series.items()
    }
    texts = []
    if repaired.faulty:
        texts.append(
            f"{repaired.faulty} of its samples contradict their neighbours and are left out"
        )
    if within_j:
        texts.append(
            f"it rose by {short_joules_text(math.fsum(within_j.values()))} more than any GPU can "
            "draw: scraped power replaces that time, and the interval includes every power there"
        )
    findings = [
        Finding("warning", "counter_leap", meter.name, f"faulty energy counter: {'; '.join(texts)}")
    ]
    return (
        replace(meter, series=series),
        findings if texts else [],
        excess_j + (repaired.doubt_j if within_j else 0.0),
    )


def _excess_energy(counter: Samples, power: Samples, highest_w: float, age_s: float) -> float:
    """Return the energy of rises above `highest_w`, which are too small for a leap, minus the
    integral of the power.
    """
    steps_j = np.diff(counter.value)
    spans_s = np.diff(counter.t)
    fast = np.flatnonzero(steps_j > highest_w * (spans_s + age_s))
    usual_j = [
        _power_energy(power, float(counter.t[at]), float(counter.t[at + 1]), highest_w)
        for at in fast
    ]
    return math.fsum(steps_j[fast] - usual_j)
