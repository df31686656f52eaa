"""Pace of a server: speed of its prefills, and the slower decode while prompts are prefilled in the same steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exporter.request_energy.pieces import FloatArray
from exporter.request_energy.spans import SAMPLE_GROUPS, RequestSpans

MAX_SLOWDOWN = 0.95
"""Largest slowdown, so that decode never stops."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Prefilled tokens per second, the part by which decode is slower during a prefill, and steps per second else."""

    prefill_speed: float
    slowdown: float
    steps_per_s: float = 0.0

    def prefill_ratio(self, decoding_s: FloatArray, prefilling_s: FloatArray) -> FloatArray:
        """Return the part of prefills in steps, by the seconds of decode and of prefill in them."""
        prefills_s = (1.0 - self.slowdown) * prefilling_s
        result: FloatArray = prefills_s / np.maximum(decoding_s + prefills_s, 1e-12)
        return result


UNKNOWN_PACE = Pace(np.inf, 0.0)


def pace_of(spans: RequestSpans, samples: int = SAMPLE_GROUPS) -> Pace:
    """Return the pace of a server, from up to `samples` groups of consecutive requests.

    The slowdown is fitted by least squares: a decode lasts a constant time for each token, and the slowdown times the
    time in which other requests are prefilled. With chunked prefill, one step computes both and takes longer.
    """
    speed = spans.prefill_speed(samples)
    if not len(spans):
        return UNKNOWN_PACE
    systems = [_decode_times(group, speed) for group in spans.groups(samples)]
    tokens, prefills_s, seconds = np.concatenate(systems, axis=1)
    system = np.column_stack([tokens, prefills_s])
    if not prefills_s.any():
        return Pace(speed, 0.0)
    step_s, slowdown = np.linalg.lstsq(system, seconds, rcond=None)[0].tolist()
    return Pace(speed, min(max(slowdown, 0.0), MAX_SLOWDOWN), 1.0 / step_s if step_s > 0.0 else 0.0)


def _decode_times(spans: RequestSpans, speed: float) -> FloatArray:
    """Return generated tokens after the first one, seconds with prefills of others, and seconds of decodes, (3, N)."""
    clock = PrefillClock(spans.prefill_starts_s(speed), spans.first_token_s)
    prefills_s = clock.prefills_s(spans.ended_s) - clock.prefills_s(spans.first_token_s)
    tokens = np.maximum(spans.generated_tokens - 1.0, 0.0)
    return np.array([tokens, prefills_s, (spans.ended_s - spans.first_token_s) * (tokens > 0)]) * (tokens > 0)


class PrefillClock:
    """Time with prefills, of which those of N requests are given by their begins and ends in seconds."""

    def __init__(self, begin_s: FloatArray, end_s: FloatArray) -> None:
        begins_s, ends_s = union(begin_s, end_s)
        lengths_s = ends_s - begins_s
        total_s = np.cumsum(lengths_s)
        self.times_s = np.column_stack([begins_s, ends_s]).ravel()
        self._prefills_s = np.column_stack([total_s - lengths_s, total_s]).ravel()

    def prefills_s(self, t_s: FloatArray) -> FloatArray:
        """Return the time with prefills up to each time."""
        if not len(self.times_s):
            return np.zeros_like(t_s)
        return np.interp(t_s, self.times_s, self._prefills_s).astype(np.float64)

    def paced_s(self, t_s: FloatArray, slowdown: float) -> FloatArray:
        """Return times on a clock that is slower during prefills, as decode is."""
        return t_s - slowdown * self.prefills_s(t_s)


@dataclass(frozen=True, slots=True)
class SlotEdges:
    """Edges of K slots (K + 1) in seconds since the first one, and on the clock of decode, which prefills slow down."""

    real_s: FloatArray
    paced_s: FloatArray
    pace: Pace = UNKNOWN_PACE

    @property
    def count(self) -> int:
        return len(self.real_s) - 1


class DecodeClock:
    """Clock of a server's decodes, which is slower during prefills. It is extended, and never changed."""

    def __init__(self) -> None:
        self._real_s, self._paced_s = np.zeros(1), np.zeros(1)

    def extend(self, spans: RequestSpans, pace: Pace, from_s: float, until_s: float) -> None:
        """Set the clock from its end, or else from a time, up to another one, by the prefills of requests."""
        fixed_s = max(float(self._real_s[-1]), from_s)
        if until_s <= fixed_s:
            return
        if pace.slowdown:
            near = spans.take(np.flatnonzero((spans.first_token_s > fixed_s) & (spans.arrived_s < until_s)))
            clock = PrefillClock(near.prefill_starts_s(pace.prefill_speed), near.first_token_s)
            inner_s = clock.times_s[(clock.times_s > fixed_s) & (clock.times_s < until_s)]
        else:
            clock, inner_s = PrefillClock(np.empty(0), np.empty(0)), np.empty(0)
        real_s = np.concatenate([[fixed_s], inner_s, [until_s]])
        added_s = clock.paced_s(real_s, pace.slowdown)
        paced_s = self.paced_s(real_s[:1]) + added_s - added_s[0]
        self._real_s, self._paced_s = np.append(self._real_s, real_s), np.append(self._paced_s, paced_s)

    def forget(self, before_s: float) -> None:
        """Forget the clock before a time; it is not slower there."""
        first = max(0, int(np.searchsorted(self._real_s, before_s)) - 1)
        self._real_s, self._paced_s = self._real_s[first:], self._paced_s[first:]

    def paced_s(self, t_s: FloatArray) -> FloatArray:
        """Return times on this clock."""
        first_s, last_s = self._real_s[0], self._real_s[-1]
        outer_s = np.minimum(t_s - first_s, 0.0) + np.maximum(t_s - last_s, 0.0)
        result: FloatArray = np.interp(t_s, self._real_s, self._paced_s) + outer_s
        return result


def union(begin_s: FloatArray, end_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the begins and ends of the intervals in which at least one of the given ones holds, in order."""
    if not len(begin_s):
        return begin_s, end_s
    order = np.argsort(begin_s)
    begin_s, reach_s = begin_s[order], np.maximum.accumulate(end_s[order])
    firsts = np.flatnonzero(np.append(True, begin_s[1:] > reach_s[:-1]))
    return begin_s[firsts], reach_s[np.append(firsts[1:] - 1, len(reach_s) - 1)]
