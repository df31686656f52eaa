"""Requests to a server that generates text, and the energy of its GPUs in slots of time."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from wattline.figures import MAD_TO_SIGMA, NORMAL_95
from wattline_exporter.requests.division.arrays import FloatArray, IntArray, Mask, time_order

_SAME_STEP_S = 1e-3
"""Requests whose first tokens are closer than this were prefilled in the same step."""
PACE_GROUPS = 2
PACE_REQUESTS = 8_192
"""Most groups of consecutive requests that show the pace of a server, and requests of a group:
those that are divided at once are of the same minutes.
"""
LEAST_TOKEN_S = 1e-4
LEAST_PREFILLED_S = 1e-7
"""Least times of a generated token of one request, and of a prefilled one: no server is faster."""
LIKELY_TOKENS = 200.0
"""Prefilled tokens that likely last as long as a generated one, with the time in the queue."""
LEAST_PHASE_S = 1e-9
"""Least time of a phase, and of all phases in a slot; less is a rounding error."""
MIN_QUIET_S = 0.7
"""Least time without requests that shows the power of other work: three slots of the exporter, or a
sample of a second.
"""
EDGE_FACTOR = 1 / NORMAL_95
"""Standard error of the meter at an edge, as a part of its half-width."""
MIN_NOISE_SLOTS = 8
"""Least number of slots without requests that show the noise of the meter."""
OTHER_QUANTILES = 0.05, 0.5, 0.95
"""Quantiles of the power above idle without requests: that of noise, the usual one, and the limit
of other work.
"""
IDLE_RATIO = 0.05
"""Half-width of a measured idle power, relative to it: that of its level in
`wattline_exporter.attribution.idle_level`.
"""


@dataclass(frozen=True, slots=True)
class RequestSpans:
    """N requests: times in seconds of one clock, in the order arrival ≤ first token ≤ end, and
    counts of tokens.

    `prompt_tokens` are all tokens of the prompt, `cached_tokens` those that the server took from
    its prefix cache.
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
        return RequestSpans(
            *(one[chosen] for one in columns),
            *(one[chosen].astype(np.float64, copy=False) for one in counts),
        )

    def groups(self) -> list[RequestSpans]:
        """Return up to PACE_GROUPS groups of PACE_REQUESTS consecutive requests."""
        last = max(0, len(self) - PACE_REQUESTS)
        starts = np.unique(np.linspace(0, last, PACE_GROUPS).astype(int))
        return [self.take(slice(start, start + PACE_REQUESTS)) for start in starts]

    def prefill_speed(self) -> float:
        """Return the usual speed of a prefill without the time in the queue, in tokens per second.

        Servers prefill in the order of arrival, so a prefill begins at the arrival or at the end of
        the one before. The speed is the median over the tokens of up to PACE_GROUPS groups of
        consecutive requests.
        """
        if not len(self):
            return math.inf
        speeds = [group.separate_speeds() for group in self.groups()]
        speed, tokens = (np.concatenate(column) for column in zip(*speeds, strict=True))
        order = np.argsort(speed)
        total = np.cumsum(tokens[order])
        return min(
            float(speed[order][np.searchsorted(total, total[-1] / 2)]), 1.0 / LEAST_PREFILLED_S
        )

    def prefill_starts_s(self, speed: float) -> FloatArray:
        """Return when the prefill of each request began: before that it waited, which is no
        work.
        """
        return np.maximum(self.arrived_s, self.first_token_s - self.prefilled_tokens / speed)

    def separate_speeds(self) -> tuple[FloatArray, FloatArray]:
        """Return tokens per second and tokens of each prefill, in the order of the first tokens."""
        order = time_order(self.first_token_s)
        first_s = self.first_token_s[order]
        before = np.searchsorted(first_s, first_s - _SAME_STEP_S) - 1
        before_s = np.where(before >= 0, first_s[np.maximum(before, 0)], -np.inf)
        tokens = self.prefilled_tokens[order]
        return tokens / np.maximum(
            first_s - np.maximum(self.arrived_s[order], before_s), 1e-6
        ), tokens


def token_rate(tokens: FloatArray, seconds: FloatArray, least_s: float) -> FloatArray:
    """Return tokens per second, at most one in `least_s`, and none in less than LEAST_PHASE_S."""
    rates: FloatArray = tokens / np.maximum(np.maximum(seconds, least_s * tokens), LEAST_PHASE_S)
    rates[seconds < LEAST_PHASE_S] = 0.0
    return rates


def with_first_tokens(spans: RequestSpans) -> tuple[RequestSpans, Mask | None]:
    """Return the spans with a likely first token where it is not known, and the mask of those where
    it is a guess.

    It is not known if it is not a number, or if the other tokens follow faster than a server can
    generate them. The prefill of a request with one token lasts up to its end. None instead of a
    mask without any guess.
    """
    decode_s = spans.ended_s - spans.first_token_s
    (unknown,) = np.nonzero(~(decode_s >= LEAST_TOKEN_S * (spans.generated_tokens - 1.0)))
    if not len(unknown):
        return spans, None
    some = spans.take(unknown)
    part = some.prefilled_tokens / (some.prefilled_tokens + LIKELY_TOKENS * some.generated_tokens)
    likely_s = some.arrived_s + part * (some.ended_s - some.arrived_s)
    has_one = some.generated_tokens <= 1.0
    first_token_s = spans.first_token_s.copy()
    first_token_s[unknown] = np.where(has_one, some.ended_s, likely_s)
    is_guess = np.zeros(len(spans), dtype=bool)
    is_guess[unknown] = ~has_one
    return replace(spans, first_token_s=first_token_s), is_guess if is_guess.any() else None


def rising_joules(joules: FloatArray, least_j: float) -> FloatArray:
    """Return the energies up to edges without those that are above a later one, at least `least_j`.

    A slot with less than no energy, by errors of the meter at its edges, takes it from the slots
    before.
    """
    result: FloatArray = np.maximum(np.minimum.accumulate(joules[::-1])[::-1], least_j)
    return result


@dataclass(frozen=True)
class EnergySlots:
    """Energy of a server's devices in K slots: `edges_s` (K + 1, rising, the clock of the
    requests), `joules` (K).

    `idle_w` is the power of the devices without requests, one for all slots or one for each (K),
    `edge_half_j` (K + 1) the half-width of the energy up to each edge. Without `idle_known`,
    `idle_w` is an assumption, and the true value may be lower. `other_w` and `other_limit_w` are
    powers above idle without requests, `noise_j` is the standard error of the meter in a slot; see
    `QuietPower`.
    """

    edges_s: FloatArray
    joules: FloatArray
    idle_w: float | FloatArray
    edge_half_j: FloatArray | None = None
    idle_known: bool = True
    other_w: float = 0.0
    other_limit_w: float = 0.0
    noise_j: float = 0.0

    @classmethod
    def of_samples(
        cls,
        edges_s: FloatArray,
        joules: FloatArray,
        idle_w: float | FloatArray,
        age_s: float,
        *,
        idle_known: bool = True,
    ) -> EnergySlots:
        """Return the slots between samples whose values are up to `age_s` old."""
        power_w = joules / np.diff(edges_s)
        highest_w = np.maximum(np.append(power_w, 0.0), np.append(0.0, power_w))
        return cls(edges_s, joules, idle_w, highest_w * age_s / 2, idle_known)

    def without_deficits(self) -> EnergySlots:
        """Return the slots, none with less than no energy. See `rising_joules`."""
        if self.joules.min(initial=0.0) >= 0.0:
            return self
        return replace(
            self, joules=np.diff(rising_joules(np.append(0.0, np.cumsum(self.joules)), 0.0))
        )

    @property
    def widths_s(self) -> FloatArray:
        return np.diff(self.edges_s)

    @property
    def idle_ratio(self) -> float:
        """Half-width of the idle power, relative to it."""
        return IDLE_RATIO if self.idle_known else 1.0

    @cached_property
    def idle_j(self) -> FloatArray:
        """Idle energy of each slot, at most its energy.

        A slot may lack energy that the next one has, by the errors of the edges. Idle energy that
        is missing is therefore added to that of the next slot: otherwise, its excess would count as
        energy above idle.
        """
        expected_j = self.idle_w * self.widths_s
        joules = np.maximum(self.joules, 0.0)
        if self.edge_half_j is None:
            return np.minimum(expected_j, joules)
        found = []
        missing_j = 0.0
        for expected, measured, most in zip(
            expected_j.tolist(), joules.tolist(), (2 * self.edge_half_j[1:]).tolist(), strict=True
        ):
            idle = min(expected + missing_j, measured)
            missing_j = min(expected + missing_j - idle, most)
            found.append(idle)
        return np.array(found)

    def dynamic_j(self, quiet_s: FloatArray, chosen: slice = slice(None)) -> FloatArray:
        """Return the energy above idle of the requests in some slots, of which `quiet_s` are
        without a request.

        Work that no request reports has its power in that time.
        """
        above_j = self.joules[chosen] - self.idle_j[chosen]
        other_j = np.minimum(self.other_w * np.maximum(quiet_s, 0.0), np.maximum(above_j, 0.0))
        result: FloatArray = above_j - other_j
        return result


class QuietPower:
    """Power above idle in the latest slots without requests: that of a loaded server, of other
    work, or noise of the meter.

    Other work that does not depend on the requests has the same distribution of power during them:
    in 95 %, it is at most the 95 % quantile. Noise of the meter is as far above idle as below.
    """

    def __init__(self, slots: int | None = None) -> None:
        self._slots = slots
        self._above_w = np.empty(0)
        self._widths_s = np.empty(0)
        self._idle_slots = np.empty((3, 0))
        """Joules, widths and half-widths of the last edge of slots without requests."""

    def add(self, slots: EnergySlots, busy: Mask) -> EnergySlots:
        """Add slots with the mask of those with requests (K,); return them with the powers without
        requests, and with the noise.

        A slot next to a request does not count for the powers, since a sensor shows the end of a
        load late; nor do the first and last.
        """
        self._add_idle(slots, ~busy)
        slots = replace(slots, noise_j=self._noise_j())
        near = np.concatenate([[True], busy, [True]])
        quiet = ~(near[:-2] | busy | near[2:])
        above_w = (slots.joules / slots.widths_s - slots.idle_w)[quiet]
        self._above_w = self._latest(np.append(self._above_w, above_w))
        self._widths_s = self._latest(np.append(self._widths_s, slots.widths_s[quiet]))
        if self._widths_s.sum() < MIN_QUIET_S:
            return slots
        low_w, usual_w, high_w = np.quantile(self._above_w, OTHER_QUANTILES).tolist()
        return replace(
            slots, other_w=max(usual_w, 0.0), other_limit_w=max(high_w + min(low_w, 0.0), 0.0)
        )

    def _latest(self, values: FloatArray) -> FloatArray:
        return values if self._slots is None else values[..., -self._slots :]

    def _add_idle(self, slots: EnergySlots, idle: Mask) -> None:
        """Add the slots without requests, by their mask (K,)."""
        edge_half_j = np.zeros(len(idle)) if slots.edge_half_j is None else slots.edge_half_j[1:]
        new = np.array([slots.joules, slots.widths_s, edge_half_j])[:, idle]
        self._idle_slots = self._latest(np.concatenate([self._idle_slots, new], axis=1))

    def _noise_j(self) -> float:
        """Return the standard error of the meter in a slot, by the scatter of the slots without
        requests.

        The errors of the edges are a part of the scatter, and count separately.
        """
        joules, widths_s, edge_half_j = self._idle_slots
        if len(joules) < MIN_NOISE_SLOTS:
            return 0.0
        left_j = joules - np.median(joules / widths_s) * widths_s
        variance_j2 = (MAD_TO_SIGMA * float(np.median(np.abs(left_j)))) ** 2
        variance_j2 -= 2 * (EDGE_FACTOR * float(np.median(edge_half_j))) ** 2
        return math.sqrt(max(variance_j2, 0.0))
