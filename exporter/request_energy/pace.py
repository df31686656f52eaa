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
    """Prefilled tokens per second, and the part by which decode is slower during a prefill."""

    prefill_speed: float
    slowdown: float


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
    slowdown = np.linalg.lstsq(system, seconds, rcond=None)[0][1] if prefills_s.any() else 0.0
    return Pace(speed, float(np.clip(slowdown, 0.0, MAX_SLOWDOWN)))


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
        self._times_s = np.column_stack([begins_s, ends_s]).ravel()
        self._prefills_s = np.column_stack([total_s - lengths_s, total_s]).ravel()

    def prefills_s(self, t_s: FloatArray) -> FloatArray:
        """Return the time with prefills up to each time."""
        if not len(self._times_s):
            return np.zeros_like(t_s)
        return np.interp(t_s, self._times_s, self._prefills_s).astype(np.float64)

    def paced_s(self, t_s: FloatArray, slowdown: float) -> FloatArray:
        """Return times on a clock that is slower during prefills, as decode is."""
        return t_s - slowdown * self.prefills_s(t_s)


def union(begin_s: FloatArray, end_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the begins and ends of the intervals in which at least one of the given ones holds, in order."""
    if not len(begin_s):
        return begin_s, end_s
    order = np.argsort(begin_s)
    begin_s, reach_s = begin_s[order], np.maximum.accumulate(end_s[order])
    firsts = np.flatnonzero(np.append(True, begin_s[1:] > reach_s[:-1]))
    return begin_s[firsts], reach_s[np.append(firsts[1:] - 1, len(reach_s) - 1)]
