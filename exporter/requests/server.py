"""One server: the requests of a run, slots of the energy of its GPUs, and batches that are not final yet."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from exporter.contract.requests import ServedRequest
from exporter.energy.meter import DeviceMeter
from exporter.model import ClockReading, Device

if TYPE_CHECKING:  # numpy is imported with the first request
    from exporter.request_energy.pieces import FloatArray
    from exporter.request_energy.spans import RequestSpans
    from exporter.request_energy.streaming import DividedRequests

SLOT_S = 0.25
"""Width of a slot, two or more updates of the usual sensors."""
BEFORE_S = 10.0
"""Time before the first report of which the polls are still known."""
MANY, RARELY_S = 5_000, 5.0
"""Requests that are held, from which on the energy is divided every RARELY_S: the cost grows with those in progress."""
MISSING_S = 0.5
"""Longest time without energy that is not declared."""
STOPPED_NOTE = "the exporter was stopped before the energy of this request was divided; it belongs to no request"
NO_GPU_NOTE = "no energy: none of the run's GPUs has been measured; see exporter check"
TOO_LATE_NOTE = (
    "no energy: the request was reported after the energy of its time was divided, or more than "
    f"{BEFORE_S:.0f} s after its end as the first of the server"
)


class RequestEnergy(NamedTuple):
    """Energy of a final request in joules; `lost` is the reason why no energy of its time is known."""

    request: ServedRequest
    prefill_j: float
    decode_j: float
    idle_j: float
    half_j: float
    separable: bool
    missing_s: float
    lost: str | None = None

    @property
    def total_j(self) -> float | None:
        return None if self.lost else self.prefill_j + self.decode_j + self.idle_j


def lost_energy(request: ServedRequest, reason: str) -> RequestEnergy:
    return RequestEnergy(request, 0.0, 0.0, 0.0, 0.0, False, 0.0, reason)


@dataclass(slots=True)
class _Batch:
    number: int
    left: int
    final: list[RequestEnergy]


class Server:
    """Requests of one run with the meters of its GPUs. Times in `_s` are CLOCK_BOOTTIME."""

    def __init__(self, window_s: float, meters: Sequence[DeviceMeter], idle_w: Callable[[], float | None]) -> None:
        from exporter.request_energy.streaming import StreamingDivision

        self._division = StreamingDivision(window_s)
        self._meters, self._idle_w = meters, idle_w
        self._requests: dict[int, tuple[ServedRequest, _Batch]] = {}
        self._next = 0
        self._batches: deque[_Batch] = deque()
        self._lowest_w = float("inf")

    def use(self, meters: Sequence[DeviceMeter], idle_w: Callable[[], float | None]) -> None:
        """Use other meters for all slots that are not divided yet: GPUs of a run may be found late."""
        if meters != self._meters:
            self._meters, self._idle_w, self._lowest_w = meters, idle_w, float("inf")
            self._division.measure_again(self._joules_at)

    def add(self, requests: Sequence[ServedRequest], number: int, now: ClockReading) -> None:
        """Add the requests of a batch."""
        if self._division.last_edge_s is None:
            self._extend(now.s - BEFORE_S, now.s - BEFORE_S)
        batch = _Batch(number, len(requests), [])
        self._batches.append(batch)
        keys = range(self._next, self._next + len(requests))
        self._next += len(requests)
        self._requests.update((key, (each, batch)) for key, each in zip(keys, requests, strict=True))
        self._division.add(spans_of(requests, now.at - now.s), keys)

    @property
    def is_busy(self) -> bool:
        return bool(self._batches)

    def tick(self, now_s: float, *, at_once: bool = False) -> tuple[list[RequestEnergy], int | None]:
        """Read the meters up to now and divide what is due; with `at_once` all.

        Return the requests of batches that are final as a whole, and the number of the last one.
        """
        if self._division.last_edge_s is not None and len(self._division):
            settling_s = max([0.0, *(meter.settling_s() for meter in self._meters)])
            until_s = now_s - settling_s
            self._extend(self._division.last_edge_s + SLOT_S, until_s)
            due_s = until_s if at_once else min(until_s, now_s - self._division.wait_s(now_s))
            every_s = RARELY_S if len(self._division) > MANY else 0.0
            if at_once or due_s - self._division.divided_s >= every_s:
                self._note_final(self._division.divide(due_s, self._idle_power_w()))
        if at_once:
            self._finish()
        found: list[RequestEnergy] = []
        number = None
        while self._batches and not self._batches[0].left:
            batch = self._batches.popleft()
            found += batch.final
            number = batch.number
        return found, number

    def estimate(self, request: ServedRequest) -> tuple[float, float] | None:
        """Return the likely joules of a request that is not final, and their half-width."""
        found = self._division.estimate(spans_of([request], 0.0))
        return (float(found[0][0]), float(found[1][0])) if found else None

    def _finish(self) -> None:
        """End all requests, also those that ended after the last slot."""
        for request, batch in self._requests.values():
            batch.final.append(lost_energy(request, STOPPED_NOTE))
            batch.left -= 1
        self._requests.clear()

    def _extend(self, from_s: float, until_s: float) -> None:
        import numpy as np

        count = int((until_s - from_s) / SLOT_S + 1e-6) + 1
        if count < 1:
            return
        edges_s: FloatArray = from_s + SLOT_S * np.arange(count, dtype=np.float64)
        self._division.extend(edges_s, self._joules_at(edges_s))

    def _joules_at(self, edges_s: FloatArray) -> FloatArray:
        """Return the energy of all GPUs up to each edge."""
        import numpy as np

        return np.array([math.fsum(meter.mark(float(t_s)).joules for meter in self._meters) for t_s in edges_s])

    def _idle_power_w(self) -> float:
        """Return the idle power of all GPUs; where it is unknown, the lowest power of a second."""
        self._lowest_w = min(self._lowest_w, self._division.lowest_w())
        known_w = self._idle_w()
        return (self._lowest_w if self._lowest_w < float("inf") else 0.0) if known_w is None else known_w

    def _note_final(self, found: DividedRequests) -> None:
        rows = zip(
            found.keys,
            found.prefill_j.tolist(),
            found.decode_j.tolist(),
            found.idle_j.tolist(),
            found.half_j.tolist(),
            found.missing_s.tolist(),
            strict=True,
        )
        for key, prefill_j, decode_j, idle_j, half_j, missing_s in rows:
            request, batch = self._requests.pop(key)
            batch.left -= 1
            if not any(meter.latest for meter in self._meters):
                batch.final.append(lost_energy(request, NO_GPU_NOTE))
                continue
            if 0.0 < missing_s >= request.ended_at - request.started_at - 1e-3:
                batch.final.append(lost_energy(request, TOO_LATE_NOTE))
                continue
            separable = found.separable and request.first_token_at is not None
            batch.final.append(RequestEnergy(request, prefill_j, decode_j, idle_j, half_j, separable, missing_s))


def spans_of(requests: Sequence[ServedRequest], offset_s: float) -> RequestSpans:
    """Return the spans on a clock that is `offset_s` behind Unix time."""
    import numpy as np

    from exporter.request_energy.spans import RequestSpans

    arrived_s = np.array([each.started_at for each in requests]) - offset_s
    ended_s = np.array([each.ended_at for each in requests]) - offset_s
    tokens = np.array(
        [(each.prompt_tokens, each.cached_tokens, each.generated_tokens) for each in requests], dtype=np.float64
    ).reshape(-1, 3)
    first = np.array([np.nan if each.first_token_at is None else each.first_token_at for each in requests]) - offset_s
    unknown = np.isnan(first)
    share = tokens[:, 0] / np.maximum(tokens[:, 0] + tokens[:, 2], 1.0)
    first = np.where(unknown, arrived_s + np.minimum(share, 0.5) * (ended_s - arrived_s), first)
    return RequestSpans(arrived_s, first, ended_s, tokens[:, 0], tokens[:, 1], tokens[:, 2])


def gpu_meters(meters: Mapping[Device, DeviceMeter], devices: Sequence[Device]) -> dict[Device, DeviceMeter]:
    return {device: meters[device] for device in devices if device.kind == "gpu" and device in meters}
