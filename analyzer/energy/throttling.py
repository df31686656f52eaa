"""What held a GPU back while a run did its work, and what it drew, from raw samples. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from analyzer.model.samples import RunFrames, Samples, samples
from analyzer.model.timeline import Window
from exporter.contract import metrics as m

POWER_CAP = "sw_power_cap"
SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
_NEAR_S = 60.0
_LEAST_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """Of one GPU while the run did its work; None where too few samples are there."""

    p95_power_w: float | None
    capped_s: float | None
    slowed_s: float | None
    temperature_celsius: float | None
    sm_clock_hz: float | None
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used_bytes: float | None = None

    @classmethod
    def of(cls, frames: RunFrames, window: Window, uuid: str, busy: set[str]) -> GpuConditions:
        if not window.aligned:
            return cls(None, None, None, None, None)
        where = {"uuid": uuid}
        during = _during(frames, window, busy)
        power, heat, clocks, busy_ratio, memory_ratio, memory = (
            _within(samples(frames.raw, metric, **where, **more), during).value
            for metric, more in (
                (m.GPU_POWER, {}),
                (m.GPU_TEMPERATURE, {"sensor": "gpu"}),
                (m.GPU_CLOCK, {"domain": "sm"}),
                (m.GPU_UTILIZATION, {"engine": "gpu"}),
                (m.GPU_UTILIZATION, {"engine": "memory"}),
                (m.GPU_MEMORY_USED, {}),
            )
        )
        events = {
            reason: _rise(samples(frames.raw, m.GPU_CLOCK_EVENT_SECONDS, reason=reason, **where), window)
            for reason in (POWER_CAP, *SLOWED)
        }
        return cls(
            float(np.quantile(power, 0.95)) if len(power) >= _LEAST_SAMPLES else None,
            events[POWER_CAP],
            highest(events[reason] for reason in SLOWED),
            float(heat.max()) if len(heat) else None,
            float(np.quantile(clocks, 0.95)) if len(clocks) >= _LEAST_SAMPLES else None,
            float(busy_ratio.mean()) if len(busy_ratio) else None,
            float(memory_ratio.mean()) if len(memory_ratio) else None,
            float(memory.max()) if len(memory) else None,
        )


def _during(frames: RunFrames, window: Window, busy: set[str]) -> list[tuple[float, float]]:
    """When the work was done: where the seconds of its phases rose as time did; else all of the run."""
    found = []
    for phase in sorted(busy):
        seconds = samples(frames.ledger, m.RUN_PHASE_SECONDS, run_id=frames.run_id, phase=phase)
        rises = np.diff(seconds.value) >= 0.9 * np.diff(seconds.t)
        found += [(float(seconds.t[at]), float(seconds.t[at + 1])) for at in np.flatnonzero(rises)]
    return found or [(window.start_s, window.end_s)]


def _within(series: Samples, stretches: list[tuple[float, float]]) -> Samples:
    inside = np.zeros(len(series), dtype=bool)
    for begin_s, end_s in stretches:
        inside |= (series.t >= begin_s) & (series.t <= end_s)
    return Samples(series.t[inside], series.value[inside])


def _rise(counter: Samples, window: Window) -> float | None:
    """From the run's begin to its end, between scrapes in proportion; None where it fell, or no scrape is near."""
    near = counter.between(window.start_s - _NEAR_S, window.end_s + _NEAR_S)
    if len(near) < 2 or near.t[-1] < window.start_s or near.t[0] > window.end_s or (np.diff(near.value) < 0).any():
        return None
    begin, end = np.interp([window.start_s, window.end_s], near.t, near.value)
    return float(end - begin)


def highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
