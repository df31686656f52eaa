"""The usual divisions of a server's energy, as alternatives to compare with: by time in flight, and
by tokens.
"""

from __future__ import annotations

import numpy as np

from wattline_exporter.requests.division.arrays import FloatArray
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans


def by_time(spans: RequestSpans, slots: EnergySlots) -> FloatArray:
    """Divide the dynamic energy of each slot by the time in flight."""
    begins_s, ends_s = (
        np.clip(each, *slots.edges_s[[0, -1]]) for each in (spans.arrived_s, spans.ended_s)
    )
    seconds = np.diff(_since(begins_s, slots.edges_s) - _since(ends_s, slots.edges_s))
    dynamic_j = slots.joules - slots.idle_j
    power_w = np.divide(dynamic_j, seconds, out=np.zeros_like(seconds), where=seconds > 1e-9)
    joules = np.append(0.0, np.cumsum(power_w * slots.widths_s))
    of_requests: FloatArray = np.interp(ends_s, slots.edges_s, joules) - np.interp(
        begins_s, slots.edges_s, joules
    )
    return of_requests


def _since(begin_s: FloatArray, t_s: FloatArray) -> FloatArray:
    """Return the sum of the times since the begins that are past, at each time."""
    begin_s = np.sort(begin_s)
    count = np.searchsorted(begin_s, t_s)
    result: FloatArray = count * t_s - np.append(0.0, np.cumsum(begin_s))[count]
    return result


def by_tokens(spans: RequestSpans, slots: EnergySlots) -> FloatArray:
    """Divide all dynamic energy by the number of prompt and generated tokens."""
    tokens = spans.prompt_tokens + spans.generated_tokens
    return tokens / tokens.sum() * float((slots.joules - slots.idle_j).sum())
