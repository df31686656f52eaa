"""Clock checks: whether samples and run have timestamps of the same clock.

The exporter names moments by its node's wall clock, a server stamps samples by its own, and either
may be set. Energy and duration do not depend on them; figures from raw samples do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from wattline.contract import metrics as m
from wattline_analyzer.core.recorded_run import RunScrapes
from wattline_analyzer.core.run_report import Finding
from wattline_analyzer.core.sample_table import SampleTable, rows_of
from wattline_analyzer.core.samples import Samples
from wattline_analyzer.core.timeline import Window

TOLERANCE_S = 5.0
"""A slow scrape has values newer than its timestamp; a smaller offset shows as a contradiction in
joules, if at all.
"""
_READ_AGE_S = 30.0
"""A source that is up was read within this time."""
_TIMELESS = (m.GPU_INFO, m.GPU_ENERGY_METHOD, m.CPU_ENERGY_METHOD, m.GPU_ENERGY_SUSPECT)


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """The difference of a server's timestamps from the node's clock by instance, where the two
    disagree.
    """

    by_instance: Mapping[str, float]

    def windows(self, scrapes: RunScrapes) -> dict[str, Window]:
        return {
            instance: replace(window, aligned=instance not in self.by_instance)
            for instance, window in scrapes.windows.items()
        }


def usable_samples(raw: SampleTable, windows: Mapping[str, Window]) -> SampleTable:
    """Return the raw samples without those that cannot be compared with the run's times."""
    apart = [instance for instance, window in windows.items() if not window.aligned]
    if not apart:
        return raw
    timeless = [metric.name for metric in _TIMELESS]
    return raw.take(~raw.where("instance", apart) | raw.where("metric", timeless))


def clock_offsets(scrapes: RunScrapes, raw: SampleTable) -> ClockOffsets:
    offsets_s = {
        instance: _offset_s(scrapes.ages[instance], window, raw, instance)
        for instance, window in scrapes.windows.items()
    }
    return ClockOffsets(
        {instance: offset_s for instance, offset_s in offsets_s.items() if offset_s is not None}
    )


def _offset_s(ages: Samples, window: Window, raw: SampleTable, instance: str) -> float | None:
    """Return the greatest offset of the server's timestamps from the node's clock; None while they
    agree.

    A scrape during the run shows the age of the run, and so the time on the node's clock. Without
    such a scrape, the last reads of the sources show the node's clock.
    """
    if window.ended and abs(window.end_s - window.start_s - window.duration_s) > TOLERANCE_S:
        return window.start_s + window.duration_s - window.end_s
    running = ages.value < window.duration_s if window.ended else np.ones(len(ages), dtype=bool)
    offsets_s = [float(offset) for offset in (ages.t - ages.value)[running] - window.start_s]
    allowed_s = TOLERANCE_S
    if not offsets_s:
        offsets_s = _read_ages_s(raw, instance)
        allowed_s = _READ_AGE_S
    widest_s = max(offsets_s, key=abs, default=0.0)
    return float(widest_s) if not -TOLERANCE_S <= widest_s <= allowed_s else None


def _read_ages_s(raw: SampleTable, instance: str) -> list[float]:
    """Return the age of the newest read at each scrape; carbon intensities are read seldom."""
    up, read = (
        rows_of(raw, metric, instance=instance) for metric in (m.SOURCE_UP, m.SOURCE_READ_TIMESTAMP)
    )
    sources = zip(up.t.tolist(), up.value.tolist(), up.texts("source"), strict=True)
    working = {
        (t_s, source)
        for t_s, value, source in sources
        if value > 0 and not source.startswith("carbon")
    }
    newest_s: dict[float, float] = {}
    for t_s, read_s, source in zip(
        read.t.tolist(), read.value.tolist(), read.texts("source"), strict=True
    ):
        if (t_s, source) in working:
            newest_s[t_s] = max(read_s, newest_s.get(t_s, -math.inf))
    return [t_s - read_s for t_s, read_s in newest_s.items()]


def clock_findings(
    windows: Mapping[str, Window],
    offsets: ClockOffsets,
    clock_set_s: Mapping[str, float],
    source: str,
) -> Iterator[Finding]:
    """Yield clocks that were set during the run, and those that disagree with the server's."""
    several = len(windows) > 1
    for instance, step_s in clock_set_s.items():
        if instance in windows:
            yield _set_finding(instance if several else "", step_s)
    for instance, offset_s in offsets.by_instance.items():
        yield _offset_finding(instance if several else "", offset_s, source)


def _set_finding(subject: str, step_s: float) -> Finding:
    way = "back" if step_s < 0 else "forward"
    text = (
        f"the node's wall clock was set {way} by {_span(step_s)} during the run; energy and "
        "duration are measured with "
        "a monotonic clock, start and end are wall clock times after the change"
    )
    return Finding("warning", "clock_set", subject, text)


def _offset_finding(subject: str, offset_s: float, source: str) -> Finding:
    text = (
        f"start and end of the run differ from the timestamps at {source} by {_span(offset_s)}: a "
        "clock is wrong or "
        "was set; raw samples are not used, energy and duration are the ledger's and remain valid; "
        "check the node's "
        "clock: timedatectl"
    )
    return Finding("warning", "clock_apart", subject, text)


def _span(seconds: float) -> str:
    seconds = abs(seconds)
    for limit_s, unit in ((3_600.0, "h"), (60.0, "min")):
        if seconds >= limit_s - 0.5:
            return f"{seconds / limit_s:.3g} {unit}"
    return f"{seconds:.0f} s"
