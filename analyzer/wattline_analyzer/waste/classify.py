"""Class of waste of each interval of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.waste import intervals as i
from wattline_analyzer.waste.intervals import Intervals
from wattline_analyzer.waste.model import CLASSES, HeldSpan, Holder, Thresholds, WasteClass

Mask = npt.NDArray[np.bool_]
NONE = -1
"""Code of an interval without waste."""
_LEAST_UNATTRIBUTED = 0.5
"""Share of unattributed energy below which the work belongs to a run without series, such as a
short run.
"""
CODES = {kind: code for code, kind in enumerate(CLASSES)}


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """`code` of each interval, -1 without waste, and `throttled_share`, the part of it that is
    throttled instead.

    `holder` is the position in `holders` of those that have the GPU for the whole interval, 0 for
    none. `deep_idle` marks intervals at the lowest power: no holder, no work, no model, low clocks.
    """

    code: npt.NDArray[np.int64]
    throttled_share: FloatArray
    holder: npt.NDArray[np.int64]
    holders: tuple[tuple[Holder, ...], ...]
    deep_idle: Mask


def classify(each: Intervals, spans: Sequence[HeldSpan], limits: Thresholds) -> Classified:
    """Return the class of each interval. An interval that is neither surely idle nor surely busy
    has none.

    An idle interval is execution-idle, else held, else has stuck clocks. In a busy interval the
    throttled share counts first; the rest counts for a limit that was left behind, else for work
    without a run. The class of a limit needs no utilization, which MIG mode lacks.
    """
    holder, holders, changing = _holders(each, spans)
    held = holder > 0
    sweep = np.isin(
        holder, [at for at, some in enumerate(holders) if any(one.sets_limit for one in some)]
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        power_w = each.energy_j / each.seconds
        quiet = each.high[i.UTILIZATION] <= limits.idle_ratio
        as_sampled = power_w <= limits.power_factor * each.high[i.POWER] + limits.power_margin_w
        idle = quiet & as_sampled
        busy = (each.high[i.UTILIZATION] > limits.idle_ratio) | (
            quiet & ~as_sampled & ~np.isnan(each.high[i.POWER])
        )
        loaded = each.first[i.MEMORY] >= limits.loaded_bytes
        empty = each.high[i.MEMORY] < limits.loaded_bytes
        up = each.first[i.CLOCK] >= limits.clock_ratio * each.first[i.CLOCK_MAX]
        low = each.high[i.CLOCK] < limits.clock_ratio * each.low[i.CLOCK_MAX]
        attributed = each.unattributed_j < _LEAST_UNATTRIBUTED * each.energy_j
        limited = _is_limited(each, limits) | _is_locked(each, limits)
    deep_idle = idle & empty & low & ~held & ~changing
    choices = [
        (WasteClass.EXECUTION_IDLE, idle & loaded & up & ~changing),
        (WasteClass.HELD_IDLE, idle & (held | loaded) & ~changing),
        (WasteClass.CLOCKS_STUCK, idle & empty & up & ~held & ~changing),
        (WasteClass.LIMIT_LEFT, ~idle & limited & ~sweep & ~changing),
        (WasteClass.UNCLAIMED, busy & ~held & ~changing & ~attributed),
    ]
    code = np.select(
        [mask for _, mask in choices], [CODES[kind] for kind, _ in choices], NONE
    ).astype(np.int64)
    share = np.where(idle, 0.0, _throttled_share(each))
    return Classified(code, share, holder, holders, deep_idle)


def _is_limited(each: Intervals, limits: Thresholds) -> Mask:
    """Return the intervals with a power limit below the default that is none of the site's."""
    below: Mask = each.high[i.LIMIT] < each.low[i.DEFAULT_LIMIT] - 0.5
    for limit_w in limits.site_limits_w:
        below &= np.abs(each.high[i.LIMIT] - limit_w) > 0.5
    return below


def _is_locked(each: Intervals, limits: Thresholds) -> Mask:
    """Return the intervals in which a clock setting keeps the clock well below the maximum."""
    locked_s = each.event_s.get(i.LOCKED)
    if locked_s is None:
        return np.zeros(len(each), dtype=bool)
    low: Mask = each.high[i.CLOCK] < limits.locked_ratio * each.low[i.CLOCK_MAX]
    return low & (locked_s >= limits.locked_share * each.seconds)


def _throttled_share(each: Intervals) -> FloatArray:
    """Return the share of the reason that held longest: reasons overlap, so they do not add up."""
    seconds = [np.nan_to_num(each.event_s[name]) for name in i.THROTTLING if name in each.event_s]
    if not seconds:
        return np.zeros(len(each))
    longest: FloatArray = np.clip(np.max(seconds, axis=0) / each.seconds, 0.0, 1.0)
    return longest


def _holders(
    each: Intervals, spans: Sequence[HeldSpan]
) -> tuple[npt.NDArray[np.int64], tuple[tuple[Holder, ...], ...], Mask]:
    """Return the holders of each interval, all their combinations, and the intervals in which a
    holder changes.
    """
    holder = np.zeros(len(each), dtype=np.int64)
    combinations: dict[tuple[Holder, ...], int] = {(): 0}
    changing = np.zeros(len(each), dtype=bool)
    for span in spans:
        first = int(np.searchsorted(each.end_s, span.start_s, side="right"))
        last = int(np.searchsorted(each.start_s, span.end_s, side="left"))
        for part in (slice(first, min(first + 1, last)), slice(max(last - 1, first), last)):
            changing[part] |= (each.start_s[part] < span.start_s) | (each.end_s[part] > span.end_s)
        known = list(combinations)
        for code in np.unique(holder[first:last]).tolist():
            joined = tuple(sorted({*known[code], span.holder}))
            holder[first:last][holder[first:last] == code] = combinations.setdefault(
                joined, len(combinations)
            )
    return holder, tuple(combinations), changing
