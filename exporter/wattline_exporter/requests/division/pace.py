"""Pace of a server: speed of its prefills, and the slower decode while prompts are prefilled in the
same steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from wattline_exporter.requests.division.arrays import FloatArray, IntArray, Mask, time_order
from wattline_exporter.requests.division.spans import (
    LEAST_PREFILLED_S,
    LEAST_TOKEN_S,
    RequestSpans,
    token_rate,
)

MAX_SLOWDOWN = 0.95
"""Largest slowdown, so that decode never stops."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Prefilled tokens per second, the part by which decode is slower during a prefill, and steps
    per second else.
    """

    prefill_speed: float
    slowdown: float
    steps_per_s: float = 0.0

    def prefill_ratio(self, decoding_s: FloatArray, prefilling_s: FloatArray) -> FloatArray:
        """Return the part of prefills in steps, by the seconds of decode and of prefill in them."""
        prefills_s = (1.0 - self.slowdown) * prefilling_s
        result: FloatArray = prefills_s / np.maximum(decoding_s + prefills_s, 1e-12)
        return result


UNKNOWN_PACE = Pace(np.inf, 0.0)


def pace_of(spans: RequestSpans) -> Pace:
    """Return the pace of a server, from up to PACE_GROUPS groups of consecutive requests.

    The slowdown is fitted by least squares: a decode lasts a constant time for each token, and the
    slowdown times the time in which other requests are prefilled. With chunked prefill, one step
    computes both and takes longer.
    """
    speed = spans.prefill_speed()
    if not len(spans):
        return UNKNOWN_PACE
    systems = [_decode_times(group, speed) for group in spans.groups()]
    tokens, prefills_s, seconds = np.concatenate(systems, axis=1)
    system = np.column_stack([tokens, prefills_s])
    if not prefills_s.any():
        return Pace(speed, 0.0)
    step_s, slowdown = np.linalg.lstsq(system, seconds, rcond=None)[0].tolist()
    return Pace(speed, min(max(slowdown, 0.0), MAX_SLOWDOWN), 1.0 / step_s if step_s > 0.0 else 0.0)


def _decode_times(spans: RequestSpans, speed: float) -> FloatArray:
    """Return generated tokens after the first one, seconds with prefills of others, and seconds of
    decodes, (3, N).
    """
    clock = PrefillClock(spans.prefill_starts_s(speed), spans.first_token_s)
    prefills_s = clock.prefills_s(spans.ended_s) - clock.prefills_s(spans.first_token_s)
    tokens = np.maximum(spans.generated_tokens - 1.0, 0.0)
    return np.array([tokens, prefills_s, (spans.ended_s - spans.first_token_s) * (tokens > 0)]) * (
        tokens > 0
    )


class PrefillClock:
    """Time with prefills, of which those of N requests are given by their begins and ends in
    seconds.
    """

    def __init__(self, begin_s: FloatArray, end_s: FloatArray) -> None:
        self.times_s, self._prefills_s = _covered_s(begin_s, end_s)

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
    """Edges of K slots (K + 1) in seconds since the first one, and on the clock of decode, which
    prefills slow down. `width_s` is the width of all slots, None if it varies.
    """

    real_s: FloatArray
    paced_s: FloatArray
    pace: Pace = UNKNOWN_PACE
    width_s: float | None = None

    @property
    def count(self) -> int:
        return len(self.real_s) - 1

    def slots_at(self, t_s: FloatArray) -> IntArray:
        """Return the slots that have the instants (N,), K for those at the last edge or later."""
        if self.width_s is None:
            return np.minimum(np.searchsorted(self.real_s, t_s, side="right") - 1, self.count)
        return np.minimum((t_s / self.width_s).astype(np.intp), self.count)


@dataclass(frozen=True, slots=True)
class RequestPhases:
    """Phases of N requests in seconds since an edge, and their loads per second. Only what follows
    a cut counts.

    Decodes are on the clock of decode, too.
    """

    arrived_s: FloatArray
    started_s: FloatArray
    begun_s: FloatArray
    ended_s: FloatArray
    decode_begun_s: FloatArray
    decode_ended_s: FloatArray
    prefill_rate: FloatArray
    token_rate: FloatArray
    context: FloatArray
    """Tokens of context at the edge, which rise by `token_rate`."""
    is_cut: Mask
    is_open: Mask
    """Masks of requests that began before the cut, and that end after the last edge."""

    @classmethod
    def of(cls, held: FloatArray, edge_s: float, paced_edge_s: float) -> RequestPhases:
        """Return the phases since an edge of requests, by their columns (11 or more, N).

        The first ones are the columns of `RequestSpans`, the begin of the prefill, the cut, and on
        the clock of decode the begin and the end of the decode and the cut.
        """
        spans = RequestSpans(*held[:6])
        started_s, cut_s, paced_begun_s, paced_ended_s, paced_cut_s = held[6:11]
        started = started_s - edge_s
        begun = np.maximum(spans.first_token_s - edge_s, started)
        ended = np.maximum(spans.ended_s - edge_s, begun)
        decode_begun = paced_begun_s - paced_edge_s
        decode_ended = paced_ended_s - paced_edge_s
        rate = token_rate(
            np.maximum(spans.generated_tokens - 1, 0.0), decode_ended - decode_begun, LEAST_TOKEN_S
        )
        cut = cut_s - edge_s
        paced_cut = paced_cut_s - paced_edge_s
        return cls(
            np.maximum(spans.arrived_s - edge_s, cut),
            np.maximum(started, cut),
            np.maximum(begun, cut),
            np.maximum(ended, cut),
            np.maximum(decode_begun, paced_cut),
            np.maximum(decode_ended, paced_cut),
            token_rate(spans.prefilled_tokens, begun - started, LEAST_PREFILLED_S),
            rate,
            spans.prompt_tokens - rate * decode_begun,
            spans.arrived_s - edge_s < cut,
            np.zeros(len(started), dtype=bool),
        )

    @staticmethod
    def flights_s(held: FloatArray, edge_s: float) -> tuple[FloatArray, FloatArray]:
        """Return the begins and ends of requests, by the columns for `of`, which has the same ones
        and takes longer.
        """
        cut_s = held[7] - edge_s
        return np.maximum(held[0] - edge_s, cut_s), np.maximum(held[2] - edge_s, cut_s)

    def until(self, edges: SlotEdges) -> RequestPhases:
        """Return the phases up to the last edge."""
        end_s = edges.real_s[-1]
        paced_end_s = edges.paced_s[-1]
        return replace(
            self,
            arrived_s=np.minimum(self.arrived_s, end_s),
            started_s=np.minimum(self.started_s, end_s),
            begun_s=np.minimum(self.begun_s, end_s),
            ended_s=np.minimum(self.ended_s, end_s),
            decode_begun_s=np.minimum(self.decode_begun_s, paced_end_s),
            decode_ended_s=np.minimum(self.decode_ended_s, paced_end_s),
            is_open=self.ended_s > end_s,
        )


class DecodeClock:
    """Clock of a server's decodes, which is slower during prefills. It is extended, and never
    changed.
    """

    def __init__(self) -> None:
        self._real_s = np.empty(0)
        self._paced_s = np.empty(0)

    def extend(self, spans: RequestSpans, pace: Pace, from_s: float, until_s: float) -> None:
        """Set the clock from its end, or else from a time, up to another one, by the prefills of
        requests.
        """
        fixed_s = max(float(self._real_s[-1]), from_s) if len(self._real_s) else from_s
        if until_s <= fixed_s:
            return
        if pace.slowdown:
            near = spans.take(
                np.flatnonzero((spans.first_token_s > fixed_s) & (spans.arrived_s < until_s))
            )
            clock = PrefillClock(near.prefill_starts_s(pace.prefill_speed), near.first_token_s)
            inner_s = clock.times_s[(clock.times_s > fixed_s) & (clock.times_s < until_s)]
        else:
            clock = PrefillClock(np.empty(0), np.empty(0))
            inner_s = np.empty(0)
        real_s = np.concatenate([[fixed_s], inner_s, [until_s]])
        added_s = clock.paced_s(real_s, pace.slowdown)
        paced_s = self.paced_s(real_s[:1]) + added_s - added_s[0]
        self._real_s, self._paced_s = (
            np.append(self._real_s, real_s),
            np.append(self._paced_s, paced_s),
        )

    def forget(self, before_s: float) -> None:
        """Forget the clock before a time; it is not slower there."""
        first = max(0, int(np.searchsorted(self._real_s, before_s)) - 1)
        self._real_s = self._real_s[first:]
        self._paced_s = self._paced_s[first:]

    def paced_s(self, t_s: FloatArray) -> FloatArray:
        """Return times on this clock."""
        if not len(self._real_s):
            return t_s
        first_s = self._real_s[0]
        last_s = self._real_s[-1]
        outer_s = np.minimum(t_s - first_s, 0.0) + np.maximum(t_s - last_s, 0.0)
        result: FloatArray = np.interp(t_s, self._real_s, self._paced_s) + outer_s
        return result


def union(begin_s: FloatArray, end_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the begins and ends of the intervals in which at least one of the given ones holds, in
    order.
    """
    if not len(begin_s):
        return begin_s, end_s
    order = time_order(begin_s)
    begin_s = begin_s[order]
    reach_s = np.maximum.accumulate(end_s[order])
    firsts = np.flatnonzero(np.append(True, begin_s[1:] > reach_s[:-1]))
    return begin_s[firsts], reach_s[np.append(firsts[1:] - 1, len(reach_s) - 1)]


def union_s(begin_s: FloatArray, end_s: FloatArray, edges_s: FloatArray) -> FloatArray:
    """Return the seconds of each slot (K,), by its edges (K + 1), in which an interval holds."""
    times_s, covered_s = _covered_s(begin_s, end_s)
    if not len(times_s):
        return np.zeros(len(edges_s) - 1)
    result: FloatArray = np.diff(np.interp(edges_s, times_s, covered_s))
    return result


def _covered_s(begin_s: FloatArray, end_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the begins and ends of the union of intervals, and the time in it up to each."""
    begins_s, ends_s = union(begin_s, end_s)
    to_end_s = np.cumsum(ends_s - begins_s)
    to_begin_s = np.append(0.0, to_end_s)[: len(begins_s)]
    times_s = np.column_stack([begins_s, ends_s]).ravel()
    return times_s, np.column_stack([to_begin_s, to_end_s]).ravel()
