"""Whether the samples' timestamps and the run's begin and end are of one clock. Pure.

The exporter names moments by its node's wall clock, a server stamps samples by its own, and either may be set. Energy
and duration do not depend on them; a figure from raw samples does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from analyzer.energy.checks import Finding
from analyzer.model.samples import RunFrames, of
from analyzer.model.timeline import Window
from exporter.contract import metrics as m

TOLERANCE_S = 5.0
"""A slow scrape shows what was a while after its timestamp; what is less shows as a contradiction in joules, if any."""
_READ_AGE_S = 30.0
"""A source that is up has been read within this time."""
_TIMELESS = (m.GPU_INFO, m.GPU_ENERGY_METHOD, m.CPU_ENERGY_METHOD, m.GPU_ENERGY_SUSPECT)


def judged(frames: RunFrames, windows: Mapping[str, Window]) -> tuple[RunFrames, dict[str, Window], list[Finding]]:
    """Frames without the raw samples that cannot be laid on the run, windows that know it, and what to say."""
    offsets_s = {instance: _offset_s(frames, instance, window) for instance, window in windows.items()}
    apart_s = {instance: offset_s for instance, offset_s in offsets_s.items() if offset_s is not None}
    findings = [
        *(_set_finding(instance if len(windows) > 1 else "", step_s) for instance, step_s in _steps(frames, windows)),
        *(_apart_finding(instance if len(windows) > 1 else "", apart_s[instance], frames) for instance in apart_s),
    ]
    if not apart_s:
        return frames, dict(windows), findings
    timeless = [metric.name for metric in _TIMELESS]
    kept = ~frames.raw["instance"].isin(list(apart_s)) | frames.raw["metric"].isin(timeless)
    known = {i: replace(window, aligned=i not in apart_s) for i, window in windows.items()}
    return replace(frames, raw=frames.raw[kept]), known, findings


def _steps(frames: RunFrames, windows: Mapping[str, Window]) -> list[tuple[str, float]]:
    return [(i, step_s) for i, step_s in frames.clock_set_s.items() if i in windows]


def _offset_s(frames: RunFrames, instance: str, window: Window) -> float | None:
    """By how much a server's timestamp is ahead of the node's clock, the most that was seen; None while they agree.

    A scrape while the run was on shows how old it was, and so when that was on the node's clock. Where no scrape came
    in time, when the sources were last read tells the node's clock.
    """
    if window.ended and abs(window.end_s - window.start_s - window.duration_s) > TOLERANCE_S:
        return window.start_s + window.duration_s - window.end_s
    ages = of(frames.ledger, m.RUN_DURATION, instance=instance, run_id=frames.run_id)
    running = ages[ages["value"] < window.duration_s] if window.ended else ages
    offsets_s = list(running["t"] - running["value"] - window.start_s)
    allowed_s = TOLERANCE_S
    if not offsets_s:
        offsets_s, allowed_s = _read_ages_s(frames.raw, instance), _READ_AGE_S
    widest_s = max(offsets_s, key=abs, default=0.0)
    return float(widest_s) if not -TOLERANCE_S <= widest_s <= allowed_s else None


def _read_ages_s(raw: pd.DataFrame, instance: str) -> list[float]:
    """Of the freshest source at each scrape; carbon intensities are read seldom."""
    keys = ["t", "source"]
    up = of(raw, m.SOURCE_UP, instance=instance)
    up = up[(up["value"] > 0) & ~up["source"].str.startswith("carbon")][keys]
    read = of(raw, m.SOURCE_READ_TIMESTAMP, instance=instance)[[*keys, "value"]].merge(up, on=keys)
    return list((read["t"] - read["value"]).groupby(read["t"]).min())


def _set_finding(subject: str, step_s: float) -> Finding:
    way = "back" if step_s < 0 else "forward"
    text = (
        f"the node's wall clock was set {way} by {_span(step_s)} while the run was on; its energy and duration are by "
        "a clock that no one sets, its begin and end by the wall clock as it was at the end"
    )
    return Finding("warning", "clock_set", subject, text)


def _apart_finding(subject: str, offset_s: float, frames: RunFrames) -> Finding:
    text = (
        f"the run's begin and end and the timestamps at {frames.source} are {_span(offset_s)} apart, so that a clock "
        "is wrong or was set: nothing is taken from raw samples; energy and duration are the ledger's and stand; "
        "see on the node: timedatectl"
    )
    return Finding("warning", "clock_apart", subject, text)


def _span(seconds: float) -> str:
    seconds = abs(seconds)
    for limit_s, unit in ((3_600.0, "h"), (60.0, "min")):
        if seconds >= limit_s - 0.5:
            return f"{seconds / limit_s:.3g} {unit}"
    return f"{seconds:.0f} s"


def duration_s(windows: Mapping[str, Window]) -> float:
    """One instance's own duration; from the first begin to the last end where there are several.

    Where their clocks disagree, the longest.
    """
    if len(windows) == 1 or not all(window.aligned for window in windows.values()):
        return max(window.duration_s for window in windows.values())
    return max(window.end_s for window in windows.values()) - min(window.start_s for window in windows.values())
