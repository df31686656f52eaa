"""Requests to a server that generates text, and the energy of its GPUs in slots of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exporter.request_energy.pieces import FloatArray

FAST_QUANTILE = 0.9
"""Quantile of the requests' prefill speeds that is taken as the speed without a queue."""


@dataclass(frozen=True, slots=True)
class RequestSpans:
    """N requests: times in seconds of one clock, in the order arrival ≤ first token ≤ end, and counts of tokens.

    `prompt_tokens` are all tokens of the prompt, `cached_tokens` those that the server took from its prefix cache.
    """

    arrived_s: FloatArray
    first_token_s: FloatArray
    ended_s: FloatArray
    prompt_tokens: FloatArray
    cached_tokens: FloatArray
    generated_tokens: FloatArray

    def __len__(self) -> int:
        return len(self.arrived_s)

    @property
    def prefilled_tokens(self) -> FloatArray:
        return np.maximum(self.prompt_tokens - self.cached_tokens, 1.0)

    def prefill_starts_s(self) -> FloatArray:
        """Return when the prefill of each request began.

        A request waits first and is then prefilled as fast as the fastest tenth of all requests. Without this, the
        time in the queue would count as work.
        """
        waited_s = np.maximum(self.first_token_s - self.arrived_s, 1e-6)
        if not len(self):
            return waited_s
        speed = float(np.quantile(self.prefilled_tokens / waited_s, FAST_QUANTILE))
        return np.maximum(self.arrived_s, self.first_token_s - self.prefilled_tokens / speed)


@dataclass(frozen=True, slots=True)
class EnergySlots:
    """Energy of a server's devices in K slots: `edges_s` (K + 1, rising, the clock of the requests), `joules` (K).

    `idle_w` is the power of the devices without requests, `age_s` the largest age of the energy at an edge.
    """

    edges_s: FloatArray
    joules: FloatArray
    idle_w: float
    age_s: float = 0.0

    @property
    def widths_s(self) -> FloatArray:
        return np.diff(self.edges_s)

    @property
    def idle_j(self) -> FloatArray:
        """Idle energy of each slot, at most its energy."""
        return np.minimum(self.idle_w * self.widths_s, np.maximum(self.joules, 0.0))
