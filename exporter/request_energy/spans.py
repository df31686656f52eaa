"""Requests to a server that generates text, and the energy of its GPUs in slots of time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from exporter.request_energy.pieces import FloatArray, IntArray

_SAME_STEP_S = 1e-3
"""Requests whose first tokens are closer than this were prefilled in the same step."""
_SAMPLES, _SAMPLE_REQUESTS = 16, 8_192


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

    def take(self, chosen: slice | IntArray) -> RequestSpans:
        """Return some of the requests."""
        columns = self.arrived_s, self.first_token_s, self.ended_s
        counts = self.prompt_tokens, self.cached_tokens, self.generated_tokens
        return RequestSpans(*(one[chosen] for one in columns), *(one[chosen].astype(np.float64) for one in counts))

    def prefill_speed(self, samples: int = _SAMPLES) -> float:
        """Return the usual speed of a prefill without the time in the queue, in tokens per second.

        Servers prefill in the order of arrival, so a prefill begins at the arrival or at the end of the one before. The
        speed is the median over the tokens of up to `samples` groups of consecutive requests.
        """
        if not len(self):
            return math.inf
        starts = np.unique(np.linspace(0, max(0, len(self) - _SAMPLE_REQUESTS), samples).astype(int))
        groups = [self.take(slice(start, start + _SAMPLE_REQUESTS)).separate_speeds() for start in starts]
        speed, tokens = (np.concatenate(column) for column in zip(*groups, strict=True))
        order = np.argsort(speed)
        total = np.cumsum(tokens[order])
        return float(speed[order][np.searchsorted(total, total[-1] / 2)])

    def prefill_starts_s(self, speed: float) -> FloatArray:
        """Return when the prefill of each request began: before that it waited, which is no work."""
        return np.maximum(self.arrived_s, self.first_token_s - self.prefilled_tokens / speed)

    def separate_speeds(self) -> tuple[FloatArray, FloatArray]:
        """Return tokens per second and tokens of each prefill, in the order of the first tokens."""
        order = np.argsort(self.first_token_s, kind="stable")
        first_s = self.first_token_s[order]
        before = np.searchsorted(first_s, first_s - _SAME_STEP_S) - 1
        before_s = np.where(before >= 0, first_s[np.maximum(before, 0)], -np.inf)
        tokens = self.prefilled_tokens[order]
        return tokens / np.maximum(first_s - np.maximum(self.arrived_s[order], before_s), 1e-6), tokens


@dataclass(frozen=True, slots=True)
class EnergySlots:
    """Energy of a server's devices in K slots: `edges_s` (K + 1, rising, the clock of the requests), `joules` (K).

    `idle_w` is the power of the devices without requests, `age_s` the largest age of the energy at an edge. Without
    `idle_known`, `idle_w` is an assumption, and the true value may be lower.
    """

    edges_s: FloatArray
    joules: FloatArray
    idle_w: float
    age_s: float = 0.0
    idle_known: bool = True

    @property
    def widths_s(self) -> FloatArray:
        return np.diff(self.edges_s)

    @property
    def idle_j(self) -> FloatArray:
        """Idle energy of each slot, at most its energy."""
        return np.minimum(self.idle_w * self.widths_s, np.maximum(self.joules, 0.0))
