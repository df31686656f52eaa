"""Sums of the classified intervals of GPUs, and the findings made of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from wattline.figures import JOULES_PER_KWH, Figure
from wattline_analyzer.core.samples import Samples
from wattline_analyzer.waste import intervals as i
from wattline_analyzer.waste.classify import NONE, Classified, classify
from wattline_analyzer.waste.idle_power import deep_idle_power, waste_half_j
from wattline_analyzer.waste.intervals import Intervals, Signals, intervals, spaced
from wattline_analyzer.waste.model import (
    CLASSES,
    IDLE,
    SUMMED,
    GpuEvidence,
    GpuKey,
    HeldSpan,
    Holder,
    Thresholds,
    Waste,
    WasteClass,
    WasteFinding,
)
from wattline_analyzer.waste.remedies import command_of

_CURRENT_S = 180.0
"""Maximum age of the last sample of a state that is ongoing."""
_NEGLIGIBLE = 1e-3
"""Maximum ratio of waste to energy of a state without waste."""
_NAMED = 3
_SAME_S = 1e-3


@dataclass(slots=True)
class _Sum:
    """Sums over intervals; `grams` and `grams_per_watt` are of all energy, and of 1 W over the same
    time.

    `spans` is the number of spans of adjacent intervals.
    """

    seconds: float = 0.0
    energy_j: float = 0.0
    grams: float = 0.0
    grams_per_watt: float = 0.0
    unknown_carbon: bool = False
    busy_s: float = 0.0
    clock_s: float = 0.0
    first_s: float = float("inf")
    last_s: float = float("-inf")
    limit_w: float | None = None
    spans: int = 0

    def add(self, other: _Sum) -> None:
        self.seconds += other.seconds
        self.spans += other.spans
        self.energy_j += other.energy_j
        self.grams += other.grams
        self.grams_per_watt += other.grams_per_watt
        self.unknown_carbon |= other.unknown_carbon
        self.busy_s += other.busy_s
        self.clock_s += other.clock_s
        self.first_s = min(self.first_s, other.first_s)
        self.last_s = max(self.last_s, other.last_s)
        self.limit_w = other.limit_w if other.limit_w is not None else self.limit_w


_Key = tuple[WasteClass, tuple[Holder, ...]]


@dataclass(slots=True)
class GpuTally:
    """Waste of one GPU, from its samples part by part in the order of time."""

    gpu: GpuKey
    spans: Sequence[HeldSpan]
    limits: Thresholds
    now_s: float
    index: str = ""
    total: _Sum = field(default_factory=_Sum)
    deep_idle: _Sum = field(default_factory=_Sum)
    reported_idle_power_w: float | None = None
    """Idle power that the exporter reports."""
    default_limit_w: float | None = None
    seen: set[str] = field(default_factory=set)
    _kept: defaultdict[_Key, _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    _open: tuple[_Key, _Sum] | None = None
    _before: dict[str, Samples] = field(default_factory=dict)

    def add(self, signals: Signals) -> None:
        """Add samples that are later than all earlier ones; the last interval of the earlier ones
        is continued.
        """
        names = signals.keys() | self._before.keys()
        joined = {name: _joined(self._before.get(name), signals.get(name)) for name in names}
        self.seen |= {name for name, samples in joined.items() if len(samples)}
        each = intervals(joined)
        if len(joined.get(i.DEFAULT_LIMIT, ())):
            self.default_limit_w = float(joined[i.DEFAULT_LIMIT].value[-1])
        if len(joined.get(i.ENERGY, ())):
            last_s = float(spaced(joined[i.ENERGY]).t[-1])
            self._before = {name: _since(samples, last_s) for name, samples in joined.items()}
        if len(each):
            self._add(each, classify(each, self.spans, self.limits))

    def evidence(self) -> Iterator[tuple[_Key, GpuEvidence]]:
        """Yield the evidence of each class and holder that lasts long enough."""
        self._close()
        for key, found in self._kept.items():
            if found.seconds < self.limits.min_s:
                continue
            idle = self.deep_idle_power
            grams = None
            half_j = (
                None
                if idle is None
                else waste_half_j(found.energy_j, found.seconds, found.spans, idle)
            )
            if idle is not None and not found.unknown_carbon:
                grams = max(found.grams - idle.number * found.grams_per_watt, 0.0)
            yield (
                key,
                GpuEvidence(
                    self.gpu,
                    self.index,
                    found.seconds,
                    found.energy_j,
                    None if idle is None else idle.number * found.seconds,
                    half_j,
                    grams,
                    found.first_s,
                    found.last_s,
                    found.last_s >= max(self.total.last_s, self.now_s - _CURRENT_S),
                    found.busy_s / found.seconds if found.busy_s == found.busy_s else None,
                    found.clock_s / found.seconds if found.clock_s == found.clock_s else None,
                    found.limit_w,
                    self.default_limit_w,
                ),
            )

    @property
    def deep_idle_power(self) -> Figure | None:
        return deep_idle_power(
            self.deep_idle.seconds,
            self.deep_idle.energy_j,
            self.deep_idle.spans,
            self.reported_idle_power_w,
        )

    def _add(self, each: Intervals, found: Classified) -> None:
        everything = np.ones(len(each))
        self.total.add(_sum(each, slice(None), everything))
        if found.deep_idle.any():
            start_s = each.start_s[found.deep_idle]
            end_s = each.end_s[found.deep_idle]
            spans = int(
                np.count_nonzero(start_s - np.append(self.deep_idle.last_s, end_s[:-1]) > _SAME_S)
            )
            idle = _sum(each, slice(None), found.deep_idle.astype(np.float64))
            self.deep_idle.add(replace(idle, spans=spans))
        throttled = np.flatnonzero(found.throttled_share > 0)
        if len(throttled):
            share = np.where(found.throttled_share > 0, found.throttled_share, 0.0)
            self._kept[WasteClass.THROTTLED, ()].add(_sum(each, throttled, share))
        rest = 1.0 - found.throttled_share
        for first, last in _stretches(each, found):
            code = int(found.code[first])
            holders = found.holders[found.holder[first]]
            if code == NONE:
                self._close()
                continue
            kind = CLASSES[code]
            key = kind, holders if kind in IDLE else ()
            self._extend(key, _sum(each, slice(first, last), rest))

    def _extend(self, key: _Key, more: _Sum) -> None:
        if key[0] in SUMMED:
            self._close()
            self._kept[key].add(more)
            return
        if self._open and (self._open[0] != key or self._open[1].last_s < more.first_s):
            self._close()
        if self._open is None:
            self._open = key, _Sum(spans=1)
        self._open[1].add(more)

    def _close(self) -> None:
        """End the open episode; a short one is no waste."""
        if self._open and self._open[1].seconds >= self.limits.min_s:
            self._kept[self._open[0]].add(self._open[1])
        self._open = None


def _has_waste(gpu: GpuEvidence) -> bool:
    """Return False for a waste that is negligible or within its half-width; what is unknown rules
    out no waste.
    """
    if gpu.waste_j is None:
        return True
    is_within = gpu.half_j is not None and gpu.waste_j <= gpu.half_j
    return gpu.waste_j > _NEGLIGIBLE * gpu.energy_j and not is_within


def waste(tallies: Sequence[GpuTally], lines: Sequence[str] = ()) -> Waste:
    """Return the findings of GPUs that waste energy or are held while idle, by falling waste.

    `lines` are further lines about missing data.
    """
    grouped: defaultdict[tuple[WasteClass, str, tuple[Holder, ...]], list[GpuEvidence]] = (
        defaultdict(list)
    )
    for tally in tallies:
        for (kind, holders), evidence in tally.evidence():
            grouped[kind, tally.gpu.instance, holders].append(evidence)
    findings = [
        WasteFinding(
            kind,
            instance,
            holders,
            tuple(sorted(gpus, key=lambda one: (len(one.index), one.index))),
        )
        for (kind, instance, holders), gpus in grouped.items()
    ]
    idle_now = {
        (holder, gpu.gpu)
        for one in findings
        if one.kind in IDLE
        for holder in one.holders
        for gpu in one.gpus
        if gpu.ongoing
    }
    busy = {
        span.holder
        for tally in tallies
        for span in tally.spans
        if span.end_s >= tally.total.last_s and (span.holder, tally.gpu) not in idle_now
    }
    findings = [
        replace(one, gpus=wasting, command=command_of(one, may_end=not busy & set(one.holders)))
        for one in findings
        if (
            wasting := tuple(
                gpu for gpu in one.gpus if one.kind is WasteClass.HELD_IDLE or _has_waste(gpu)
            )
        )
    ]
    return Waste(
        tuple(
            sorted(
                findings,
                key=lambda one: (-(one.waste_j or 0.0), -one.energy_j, one.kind, one.instance),
            )
        ),
        len(tallies),
        sum(tally.total.seconds for tally in tallies),
        sum(tally.total.energy_j for tally in tallies),
        (*_missing(tallies), *lines),
    )


_NEEDED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "energy counter": ("no class is judged", (i.ENERGY,)),
    "utilization or power": ("idle and unclaimed GPUs are not judged", (i.UTILIZATION, i.POWER)),
    "memory or clocks": (
        "execution-idle and stuck clocks are not judged",
        (i.MEMORY, i.CLOCK, i.CLOCK_MAX),
    ),
    "power limit or its default": (
        "power limits left behind are not judged",
        (i.LIMIT, i.DEFAULT_LIMIT),
    ),
}


def _missing(tallies: Sequence[GpuTally]) -> Iterator[str]:
    for what, (effect, names) in _NEEDED.items():
        lacking = [tally for tally in tallies if not set(names) <= tally.seen]
        if lacking:
            yield f"no {what} of {_some(lacking)}: {effect}"
    no_events = [tally for tally in tallies if not set(i.THROTTLING) & tally.seen]
    if no_events:
        yield f"no clock event times of {_some(no_events)}: throttling is not judged"
    unknown = [
        tally for tally in tallies if tally.deep_idle_power is None and any(tally.evidence())
    ]
    if unknown:
        yield (
            f"no deep-idle power of {_some(unknown)}: the waste in joules is unknown, only the "
            "energy is shown"
        )


def _some(tallies: Sequence[GpuTally]) -> str:
    names = [
        f"{tally.gpu.instance} GPU {tally.index or tally.gpu.uuid}".strip() for tally in tallies
    ]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _stretches(each: Intervals, found: Classified) -> Iterator[tuple[int, int]]:
    """Yield the stretches of adjacent intervals of one class and one combination of holders."""
    change = (
        (np.diff(found.code) != 0)
        | (np.diff(found.holder) != 0)
        | (each.start_s[1:] - each.end_s[:-1] > _SAME_S)
    )
    borders = [0, *(np.flatnonzero(change) + 1).tolist(), len(each)]
    yield from pairwise(borders)


def _sum(each: Intervals, at: slice | np.ndarray, share: np.ndarray) -> _Sum:
    part = share[at]
    seconds = each.seconds[at] * part
    energy_j = each.energy_j[at] * part
    used = part > 0
    grams_per_j = each.mean_of(i.INTENSITY)[at] / JOULES_PER_KWH
    limits_w = each.high[i.LIMIT][at]
    return _Sum(
        float(seconds.sum()),
        float(energy_j.sum()),
        float(np.nansum(grams_per_j * energy_j)),
        float(np.nansum(grams_per_j * seconds)),
        bool(np.isnan(grams_per_j[used]).any()),
        float((each.mean_of(i.UTILIZATION)[at] * seconds).sum()),
        float((each.mean_of(i.CLOCK)[at] / each.high[i.CLOCK_MAX][at] * seconds).sum()),
        float(each.start_s[at][used].min(initial=np.inf)),
        float(each.end_s[at][used].max(initial=-np.inf)),
        float(limits_w[-1]) if len(limits_w) and not np.isnan(limits_w[-1]) else None,
    )


def _joined(before: Samples | None, after: Samples | None) -> Samples:
    if before is None or not len(before):
        return after if after is not None else Samples(np.empty(0), np.empty(0))
    if after is None or not len(after):
        return before
    later = after.t > before.t[-1]
    return Samples(
        np.concatenate([before.t, after.t[later]]),
        np.concatenate([before.value, after.value[later]]),
    )


def _since(samples: Samples, from_s: float) -> Samples:
    """Return the samples from the last one up to a time on."""
    first = max(int(np.searchsorted(samples.t, from_s + 1e-6, side="right")) - 1, 0)
    return Samples(samples.t[first:], samples.value[first:])
