"""Conditions of a GPU during a run's work, from raw samples: power, slowdown, temperature, clock,
use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from wattline.contract import metrics as m
from wattline.counter_arrays import counter_steps
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.phases import run_phase_spans
from wattline_analyzer.core.recorded_run import RunScrapes
from wattline_analyzer.core.sample_table import SampleTable, samples
from wattline_analyzer.core.samples import Samples
from wattline_analyzer.core.timeline import Window

POWER_CAP = "sw_power_cap"
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
_NEAR_S = 60.0
_LEAST_SAMPLES = 5
_SLOW_READING_S = 1.0
"""Age of the readings of clocks, temperature, utilization and memory that a scrape may have."""

Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class GpuConditions:
    """Conditions of one GPU during the work; None where there are too few samples.

    `capped_s` and `slowed_s` are the seconds with power cap and slowdown events. Utilizations are
    ratios.
    """

    p95_power_w: float | None = None
    capped_s: float | None = None
    slowed_s: float | None = None
    temperature_celsius: float | None = None
    sm_clock_hz: float | None = None
    utilization: float | None = None
    memory_utilization: float | None = None
    memory_used_bytes: float | None = None


def work_spans(
    scrapes: RunScrapes, instance: str, phases: Collection[str]
) -> list[tuple[float, float]]:
    """Return the spans of these phases on one instance; empty if there are none."""
    return [
        (span.start_s, span.end_s)
        for span in run_phase_spans(scrapes, instance)
        if span.phase in phases
    ]


def gpu_conditions(raw: SampleTable, window: Window, uuid: str, work: Spans) -> GpuConditions:
    """Return the conditions in the spans of the work, or in the whole window if there are none.

    Without `window.aligned` the samples cannot be compared with the run's times, and nothing is
    known.
    """
    if not window.aligned:
        return GpuConditions()
    where = {"uuid": uuid}
    during = work or [(window.start_s, window.end_s)]
    read_during = read_spans(during)
    power, heat, clocks, busy_ratio, memory_ratio, memory = (
        samples_within(samples(raw, metric, **where, **more), spans).value
        for metric, more, spans in (
            (m.GPU_POWER, {}, during),
            (m.GPU_TEMPERATURE, {"sensor": "gpu"}, read_during),
            (m.GPU_CLOCK, {"domain": "sm"}, read_during),
            (m.GPU_UTILIZATION, {"engine": "gpu"}, read_during),
            (m.GPU_UTILIZATION, {"engine": "memory"}, read_during),
            (m.GPU_MEMORY_USED, {}, read_during),
        )
    )
    events_s = {
        reason: _rise(samples(raw, m.GPU_CLOCK_EVENT_SECONDS, reason=reason, **where), window)
        for reason in (POWER_CAP, *SLOWDOWNS)
    }
    return GpuConditions(
        float(np.quantile(power, 0.95)) if len(power) >= _LEAST_SAMPLES else None,
        events_s[POWER_CAP],
        highest(events_s[reason] for reason in SLOWDOWNS),
        float(heat.max()) if len(heat) else None,
        float(np.quantile(clocks, 0.95)) if len(clocks) >= _LEAST_SAMPLES else None,
        float(busy_ratio.mean()) if len(busy_ratio) else None,
        float(memory_ratio.mean()) if len(memory_ratio) else None,
        float(memory.max()) if len(memory) else None,
    )


def read_spans(spans: Spans) -> Spans:
    """Return the parts of the spans in which a scrape has no reading from before the span, except
    of power.
    """
    return [(start_s + _SLOW_READING_S, end_s) for start_s, end_s in spans]


def is_unused(raw: SampleTable, device: ReportDevice, window: Window) -> bool:
    """Return True if the GPU's utilization was 0 at every sample of the run, and there are enough
    of them.
    """
    busy = samples(
        raw, m.GPU_UTILIZATION, instance=device.instance, uuid=device.device, engine="gpu"
    )
    ratios = busy.between(window.start_s, window.end_s).value
    return window.aligned and len(ratios) >= _LEAST_SAMPLES and not ratios.any()


def samples_within(series: Samples, spans: Spans) -> Samples:
    inside = np.zeros(len(series), dtype=bool)
    for start_s, end_s in spans:
        inside |= (series.t >= start_s) & (series.t <= end_s)
    return Samples(series.t[inside], series.value[inside])


def _rise(counter: Samples, window: Window) -> float | None:
    """Return the rise over the run, interpolated between scrapes; None if the counter restarted,
    or without a scrape nearby.
    """
    near = counter.between(window.start_s - _NEAR_S, window.end_s + _NEAR_S)
    if len(near) < 2 or near.t[-1] < window.start_s or near.t[0] > window.end_s:
        return None
    steps = counter_steps(near.t, near.value)
    if steps.restarted.any() or len(steps.kept) < 2:
        return None
    edges_s = [window.start_s, window.end_s]
    start, end = np.interp(edges_s, near.t[steps.kept], near.value[steps.kept])
    return float(end - start)


def highest(values: Iterable[float | None]) -> float | None:
    """Return the highest known value; None if no value is known."""
    return max((value for value in values if value is not None), default=None)
