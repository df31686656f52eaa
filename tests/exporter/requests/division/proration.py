"""The usual divisions of a server's energy, as alternatives to compare with: by time in flight, and
by tokens.
"""

from __future__ import annotations

import numpy as np

from wattline_analyzer.core.samples import FloatArray
from wattline_exporter.requests.division.pieces import Density, Pieces, amounts_at
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans


def by_time(spans: RequestSpans, slots: EnergySlots) -> FloatArray:
    """Divide the dynamic energy of each slot by the time in flight."""
    pieces = Pieces.within(slots.edges_s, spans.arrived_s, spans.ended_s, np.arange(len(spans)))
    seconds = pieces.totals(slots.edges_s, np.ones(len(pieces.request)))
    dynamic_j = slots.joules - slots.idle_j
    density = np.divide(dynamic_j, seconds, out=np.zeros_like(seconds), where=seconds > 0)
    return amounts_at(pieces.request, Density(slots.edges_s, density).integral(pieces), len(spans))


def by_tokens(spans: RequestSpans, slots: EnergySlots) -> FloatArray:
    """Divide all dynamic energy by the number of prompt and generated tokens."""
    tokens = spans.prompt_tokens + spans.generated_tokens
    return tokens / tokens.sum() * float((slots.joules - slots.idle_j).sum())
