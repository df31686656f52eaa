"""One LLM server: the requests of a run, slots of the energy of its GPUs, and batches that are not
final yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from wattline.figures import Figure, sum_of_correlated
from wattline_exporter.attribution.device_loads import GpuUse
from wattline_exporter.requests.division.arrays import FloatArray, IntArray
from wattline_exporter.requests.division.columns import RequestColumns, as_items, spans_at
from wattline_exporter.requests.division.division import DividedRequests, Division
from wattline_exporter.requests.division.energy_rows import set_energies, totals_j
from wattline_exporter.requests.division.model import MIN_FIT_SLOTS, only_role
from wattline_exporter.requests.division.spans import EnergySlots, RequestSpans
from wattline_exporter.requests.division.totals import DivisionTotals
from wattline_exporter.requests.energy_trail import STEP_S, EnergyTrail, pause_overlaps_s
from wattline_exporter.requests.final import (
    FINAL_TYPE,
    NO_GPU,
    NO_TIME,
    OPEN_TYPE,
    REQUEST_FIELDS,
    STOPPED,
    TOO_LATE,
    FinalEnergy,
)
from wattline_exporter.requests.views import PENDING_NO_GPU_NOTE, pending_note
from wattline_exporter.requests.watermark import Watermark
from wattline_exporter.sensors.readings import ClockReading, Device

EXTEND_S = 2.0
"""Time between two readings of the meters: each one takes all polls of the last seconds into
account.
"""
MANY = 5_000
"""Requests that are held, from which on the meters are read and the energy is divided every
RARELY_S, at lower cost.
"""
RARELY_S = 8.0
"""Longest time between two readings of a meter, which keeps the polls of 12 s."""
LATE_S = 10.0
"""Time for which slots wait for the polls of their time."""

SECOND_TYPE = np.dtype(
    [*((name, "f8") for name in ("begin", "end", "joules", "idle_j")), ("is_idle_known", "?")]
)
"""Energy of the run's part of its GPUs in about a second, and its idle energy."""
_SLOTS_A_SECOND = round(1.0 / STEP_S)

Trails = Mapping[Device, EnergyTrail]
EnergyAt = Callable[[Device, EnergyTrail, FloatArray], tuple[FloatArray, FloatArray]]
"""Energy of a run of a GPU from the first of some edges up to each one, with the half-widths of the
meter.
"""
IdlePower = Callable[[Device, FloatArray], FloatArray | None]
"""Part of a run in the idle power of a GPU between consecutive edges, None where it is unknown."""


class _Batch(NamedTuple):
    """N requests: values (6, N), hashes of ids, numbers of labels (N,), and the lag of the clock to
    Unix time.
    """

    number: int
    values: FloatArray
    id_hashes: IntArray
    labels: IntArray
    offset_s: float


class DividedTime(NamedTuple):
    """Energy of a run that was divided: sums since `begin_at`, and rows of SECOND_TYPE in Unix
    time.
    """

    begin_at: float
    totals: DivisionTotals
    seconds: np.ndarray


class RecoveredBatch(NamedTuple):
    """N requests that a previous exporter accepted, with hashes of their ids and the numbers of
    their labels (N,); `is_final` if it has saved their energies.
    """

    number: int
    requests: RequestColumns
    id_hashes: IntArray
    labels: IntArray
    is_final: bool


class Server:
    """Requests of one run with the energy of its GPUs. Times in `_s` are CLOCK_BOOTTIME."""

    def __init__(
        self,
        watermark: Watermark,
        trails: Trails,
        idle_w: IdlePower,
        energy_at: EnergyAt,
        others_on_gpus: Callable[[float], Sequence[GpuUse]] = lambda _: (),
    ) -> None:
        self._division = Division(OPEN_TYPE, STEP_S)
        self._watermark = watermark
        self._trails = trails
        self._idle_w = idle_w
        self._gpu_energy_at = energy_at
        self._others_on_gpus = others_on_gpus
        self._new: list[_Batch] = []
        """Batches that are not in the division yet."""
        self._left: dict[int, int] = {}
        """Requests that are not final, by the numbers of the batches that are not final as a whole.
        """
        self._final = np.empty(0, FINAL_TYPE)
        """Final requests of batches that are not final as a whole."""
        self._roles: set[str | None] = set()
        """Roles of all requests so far."""
        self._begin_at: float | None = None
        """Unix time of the begin of the first divided slot, as it was when that was divided."""
        self._final_batch = 0
        """Number of the last batch whose energies a previous exporter has saved."""
        self._recovered_batch = 0
        """Number of the last batch that a previous exporter accepted."""
        self._lowest_w = float("inf")
        self._unmeasured_until_s = -math.inf
        """Instant up to which no energy is known."""
        self._begun_s = math.inf
        """Instant at which this exporter began to read the energies."""
        self._late_from_s = math.inf
        """Instant from which slots have energies that were read too early: before the polls of
        their time, or before the loads of all runs were known.
        """

    def __len__(self) -> int:
        return len(self._division) + sum(len(each.id_hashes) for each in self._new)

    @property
    def trails(self) -> Trails:
        return self._trails

    @property
    def divided_s(self) -> float:
        """Time up to which the energy is divided."""
        return self._division.divided_s

    @property
    def last_edge_s(self) -> float | None:
        """End of the last slot."""
        return self._division.last_edge_s

    def use(self, trails: Trails) -> None:
        """Use other GPUs for all slots that are not divided yet: those of a run may be found
        late.
        """
        if trails != self._trails:
            self._trails = trails
            self.measure_again(-math.inf)
            begins_s = [each.begin_s for each in trails.values() if each.begin_s < math.inf]
            self._division.fit_from(max([self._division.divided_s, *begins_s]))

    def measure_again(self, from_s: float) -> None:
        """Replace the energies from an instant on: another run has a part of them.

        They are replaced again with the next slots, when the loads of both runs are known.
        """
        self._lowest_w = float("inf")
        self._division.measure_again(self._energy_at, from_s)
        self._late_from_s = min(self._late_from_s, from_s)

    def add(
        self,
        requests: RequestColumns,
        id_hashes: IntArray,
        labels: IntArray,
        number: int,
        now: ClockReading,
    ) -> int:
        """Add the requests of a batch, with the number of the labels of each one (N,). Return the
        number of those that are late: the energy of their time is divided.
        """
        self._left[number] = len(requests)
        self._hold(number, requests, id_hashes, labels, now)
        self._report(requests, now, now.s)
        ended_s = requests.ended_at - (now.at - now.s)
        is_late = (ended_s > self._unmeasured_until_s) & (ended_s <= self._division.divided_s)
        return int(np.count_nonzero(is_late)) if self._is_measured else 0

    def _hold(
        self,
        number: int,
        requests: RequestColumns,
        id_hashes: IntArray,
        labels: IntArray,
        now: ClockReading,
    ) -> None:
        used = np.flatnonzero(np.bincount(requests.set_numbers)).tolist()
        self._roles |= {requests.sets[each].role for each in used}
        self._new.append(_Batch(number, requests.values, id_hashes, labels, now.at - now.s))

    def _report(self, requests: RequestColumns, now: ClockReading, called_s: float) -> None:
        offset_s = now.at - now.s
        arrived_s = requests.started_at - offset_s
        self._watermark.report(arrived_s, requests.ended_at - offset_s, called_s)

    def end(self, run_end_s: float) -> None:
        """Note the end of the run."""
        self._watermark.end(run_end_s)

    def _add_new(self) -> None:
        """Add the batches since the last call to the division: once a second, since each array
        operation costs.
        """
        if not self._new:
            return
        values = np.concatenate([each.values for each in self._new], axis=1)
        sizes = [len(each.id_hashes) for each in self._new]
        rows = np.empty(values.shape[1], OPEN_TYPE)
        rows["id"] = np.concatenate([each.id_hashes for each in self._new])
        rows["labels"] = np.concatenate([each.labels for each in self._new])
        rows["batch"] = np.repeat([each.number for each in self._new], sizes)
        rows["position"] = np.concatenate([np.arange(size) for size in sizes])
        spans, is_guess = spans_at(values, np.repeat([each.offset_s for each in self._new], sizes))
        rows["has_first_token"] = True if is_guess is None else ~is_guess
        rows["arrived_s"] = spans.arrived_s
        rows["ended_s"] = spans.ended_s
        self._new = []
        has_time = values[2] > values[0]
        if not has_time.all():
            self._add_final(_without_energy(rows[~has_time], NO_TIME))
            rows = rows[has_time]
            spans = spans.take(np.flatnonzero(has_time))
        self._division.use_role(only_role(self._roles))
        self._division.add(spans, rows, ~rows["has_first_token"])

    def begin(self, from_s: float, now_s: float, *, is_continued: bool) -> None:
        """Begin the first slot; `is_continued` if the energy before it was divided before."""
        edges_s = np.array([from_s])
        self._division.extend(edges_s, *self._energy_at(edges_s))
        self._begun_s = now_s
        self._unmeasured_until_s = -math.inf if is_continued else from_s

    def recover(
        self, batches: Sequence[RecoveredBatch], divided_s: float, now: ClockReading
    ) -> None:
        """Continue the division of a previous exporter, which divided the slots up to an instant.

        The slots from the first one on are divided again: its final requests do not count, but the
        others have the rest.
        """
        for each in batches:
            if each.is_final:
                self._final_batch = each.number
            else:
                self._left[each.number] = len(each.requests)
            self._recovered_batch = each.number
            self._hold(each.number, each.requests, each.id_hashes, each.labels, now)
            ended_s = each.requests.ended_at - (now.at - now.s)
            self._report(each.requests, now, float(ended_s.max()))
        self._watermark.restart(now.s)
        self._add_new()
        self._extend(self._division.divided_s, divided_s)
        self._add_final(self._final_rows(self._divide(divided_s)))
        self._division.forget_divided()

    @property
    def is_busy(self) -> bool:
        return bool(self._left)

    def tick(
        self, now_s: float, known_s: float, *, every_s: float = 0.0, at_once: bool = False
    ) -> tuple[np.ndarray, int | None]:
        """Read the meters up to `known_s`, and divide the energy of the requests that are due; with
        `at_once` of all.

        Energy is divided every `every_s` at most. Return rows of FINAL_TYPE of the batches whose
        requests are all final, and the number of the last batch.
        """
        self._add_new()
        last_s = self._division.last_edge_s
        if last_s is not None:
            closed_s = math.inf if at_once else self._watermark.closed_s(now_s)
            is_last = closed_s == math.inf
            is_large = len(self._division) > MANY
            if is_last or now_s - last_s >= (RARELY_S if is_large else EXTEND_S):
                read_s = self._read_s(now_s)
                self._extend(
                    last_s, self._stop_s(now_s, read_s) if at_once else min(read_s, known_s)
                )
            if not len(self._division):
                closed_s = now_s - self._watermark.window_s
            if not at_once:
                closed_s = min(closed_s, known_s)
            if is_last or closed_s - self._division.divided_s >= (
                RARELY_S if is_large else every_s
            ):
                self._add_final(self._final_rows(self._divide(closed_s)))
        if at_once:
            self._finish()
        return self._take_whole()

    def _read_s(self, now_s: float) -> float:
        """Read the energies of the GPUs; return the time up to which they are known, or LATE_S ago
        if they stay unknown.
        """
        for each in self._trails.values():
            each.read(now_s)
        polled = [each for each in self._trails.values() if each.is_polled]
        late_s = now_s - LATE_S if now_s >= self._begun_s + LATE_S else -math.inf
        return min([now_s, *(max(each.last_s, late_s) for each in polled)])

    def _stop_s(self, now_s: float, read_s: float) -> float:
        """Return the end of the last slot at a stop: that of the last request, whose energy may not
        be settled.
        """
        last_s = float(self._division.held()[1].ended_s.max(initial=-math.inf))
        begin_s = self._division.divided_s
        until_s = max(read_s, min(now_s, last_s))
        return begin_s + STEP_S * math.ceil((until_s - begin_s) / STEP_S)

    def find(self, id_hash: int) -> tuple[int, FinalEnergy | RequestSpans] | None:
        """Return the number of a request's batch, and its energy, or its span if it is not
        final.
        """
        self._add_new()
        keys, spans = self._division.held()
        (held,) = np.nonzero(keys["id"] == id_hash)
        if len(held):
            return int(keys["batch"][held[-1]]), spans.take(held[-1:])
        (final,) = np.nonzero(self._final["id"] == id_hash)
        return (
            (int(self._final["batch"][final[-1]]), FinalEnergy.of(self._final[final[-1:]]))
            if len(final)
            else None
        )

    def estimate(self, span: RequestSpans) -> tuple[float, float] | None:
        """Return the likely joules of a request that is not final, and their half-width."""
        found = self._division.estimate(span)
        return (float(found[0][0]), float(found[1][0])) if found else None

    def pending_note(self, now_s: float) -> str:
        """Return why a request that is not final has no estimate."""
        if not self._is_measured:
            return PENDING_NO_GPU_NOTE
        return pending_note(MIN_FIT_SLOTS * STEP_S, self._watermark.wait_s(now_s))

    @property
    def _is_measured(self) -> bool:
        return any(each.is_polled for each in self._trails.values())

    def _divide(self, due_s: float) -> DividedRequests:
        idle_w, is_known = self._idle_power_w()
        return self._division.divide(due_s, idle_w, idle_known=is_known)

    def take_divided(self, unix_offset_s: float) -> DividedTime | None:
        """Return the energy that was divided since the last call, None without any."""
        divided = self._division.take_divided()
        if not divided:
            return None
        seconds = np.concatenate([_seconds_of(each) for each in divided])
        seconds["begin"] += unix_offset_s
        seconds["end"] += unix_offset_s
        if self._begin_at is None:
            self._begin_at = float(seconds["begin"][0])
        return DividedTime(self._begin_at, self._division.totals, seconds)

    def _final_rows(self, found: DividedRequests) -> np.ndarray:
        rows = np.zeros(len(found.keys), FINAL_TYPE)
        rows[REQUEST_FIELDS] = found.keys[REQUEST_FIELDS]
        set_energies(rows, found.energies)
        self._division.rest_j += float(found.total_j.sum() - totals_j(rows).sum())  # of rounding
        rows["missing_s"] = found.missing_s
        rows["is_idle_known"] = found.idle_known
        rows["is_separable"] = found.keys["has_first_token"] & found.separable
        arrived_s = found.keys["arrived_s"]
        ended_s = found.keys["ended_s"]
        is_missing = (found.missing_s > 0.0) & (found.missing_s >= ended_s - arrived_s - 1e-3)
        is_recovered = found.keys["batch"] <= self._recovered_batch
        rows["loss"][is_missing & ~is_recovered] = TOO_LATE
        rows["loss"][is_missing & is_recovered] = STOPPED
        rows["mean_s"] = pause_overlaps_s(self._trails.values(), arrived_s, ended_s)
        if len(rows) and (uses := self._others_on_gpus(float(arrived_s.min()))):
            begins_s = np.array([use.begin_s for use in uses])[:, np.newaxis]
            ends_s = np.array([math.inf if use.end_s is None else use.end_s for use in uses])[
                :, np.newaxis
            ]
            rows["is_shared"] = ((begins_s < ended_s) & (arrived_s < ends_s)).any(axis=0)
        if not self._is_measured:
            rows["loss"] = NO_GPU
        is_lost = rows["loss"] > 0
        self._division.rest_j += float(totals_j(rows[is_lost]).sum())  # up to a millisecond each
        for name in ("prefill_j", "decode_j", "idle_j"):
            rows[name][is_lost] = 0.0
        return rows

    def _finish(self) -> None:
        """End all requests, also those that ended after the last slot."""
        self._add_final(_without_energy(self._division.take_all(), STOPPED))

    def _add_final(self, rows: np.ndarray) -> None:
        if self._final_batch:
            rows = rows[rows["batch"] > self._final_batch]
        self._final = np.concatenate([self._final, rows]) if len(self._final) else rows
        batch = rows["batch"]
        firsts = np.flatnonzero(
            np.diff(batch, prepend=-1)
        )  # of requests of one batch, in the order of their reports
        for number, count in zip(
            batch[firsts].tolist(), np.diff(firsts, append=len(batch)).tolist(), strict=True
        ):
            self._left[number] -= count

    def _take_whole(self) -> tuple[np.ndarray, int | None]:
        """Remove the first batches that are final as a whole; return their rows, and the number of
        the last one.
        """
        numbers = [
            number for number, _ in takewhile(lambda batch: not batch[1], self._left.items())
        ]
        if not numbers:
            return self._final[:0], None
        for number in numbers:
            del self._left[number]
        is_whole = np.isin(self._final["batch"], numbers)
        if is_whole.all():
            whole = self._final
            self._final = self._final[:0]
        else:
            whole, self._final = (
                as_items(self._final)[kept].view(FINAL_TYPE) for kept in (is_whole, ~is_whole)
            )
        return whole, numbers[-1]

    def _extend(self, last_s: float, until_s: float) -> None:
        """Add the slots from the last edge up to an instant."""
        count = int((until_s - last_s) / STEP_S + 1e-6)
        if count < 1:
            return
        if self._late_from_s < last_s:
            self._division.measure_again(self._energy_at, self._late_from_s)
        is_late = any(each.last_s < until_s - STEP_S for each in self._trails.values())
        self._late_from_s = min(self._late_from_s, last_s) if is_late else math.inf
        edges_s: FloatArray = last_s + STEP_S * np.arange(count + 1, dtype=np.float64)
        joules, half_j = self._energy_at(edges_s)
        self._division.extend(edges_s[1:], self._division.last_j + joules[1:], half_j[1:])

    def _energy_at(self, edges_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the energy of all GPUs from the first edge up to each one, and its half-widths."""
        energies = [
            self._gpu_energy_at(device, trail, edges_s) for device, trail in self._trails.items()
        ]
        return energy_of_gpus(energies, len(edges_s))

    def _idle_power_w(self) -> tuple[float | FloatArray, bool]:
        """Return the idle power of all GPUs in each slot, True if it is known; else the lowest
        power of a second.
        """
        self._lowest_w = min(self._lowest_w, self._division.lowest_w())
        edges_s = self._division.edges_s
        total_w = np.zeros(len(edges_s) - 1)
        for device, trail in self._trails.items():
            if (own_w := self._idle_w(device, edges_s)) is None:
                return (self._lowest_w if self._lowest_w < float("inf") else 0.0), False
            total_w += np.where(edges_s[:-1] >= trail.begin_s, own_w, 0.0)
        return total_w, True


def energy_of_gpus(
    energies: Sequence[tuple[FloatArray, FloatArray]], edges: int
) -> tuple[FloatArray, FloatArray]:
    """Return the sum of the energies of several GPUs up to each edge, and its half-widths.

    `energies` are joules (K,) and half-widths (K,) of each GPU at K edges. Half-widths add, since
    those of one instant are correlated: the GPUs of a server change their power together, and their
    sensors may update at the same instant.
    """
    of_gpus = [list(map(Figure, joules.tolist(), half_j.tolist())) for joules, half_j in energies]
    none = [Figure(0.0, 0.0)] * edges  # the energy of a server without GPUs
    sums = [sum_of_correlated(parts) for parts in zip(none, *of_gpus, strict=True)]
    return (
        np.array([one.value for one in sums], np.float64),
        np.array([one.half_width for one in sums], np.float64),
    )


def _seconds_of(slots: EnergySlots) -> np.ndarray:
    """Return rows of SECOND_TYPE, each one of up to _SLOTS_A_SECOND slots."""
    firsts = np.arange(0, len(slots.joules), _SLOTS_A_SECOND)
    rows = np.zeros(len(firsts), SECOND_TYPE)
    rows["begin"] = slots.edges_s[firsts]
    rows["end"] = np.append(rows["begin"][1:], slots.edges_s[-1])
    rows["joules"] = np.add.reduceat(slots.joules, firsts)
    rows["idle_j"] = np.add.reduceat(slots.idle_j, firsts)
    rows["is_idle_known"] = slots.idle_known
    return rows


def _without_energy(keys: np.ndarray, loss: int) -> np.ndarray:
    """Return rows of FINAL_TYPE of requests of OPEN_TYPE, with the reason why they have no
    energy.
    """
    rows = np.zeros(len(keys), FINAL_TYPE)
    rows[REQUEST_FIELDS] = keys[REQUEST_FIELDS]
    rows["loss"] = loss
    return rows
