"""Requests that have an energy, and notes on the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wattline_analyzer.core.fetch import TimeRange
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.times import local_time
from wattline_analyzer.requests.loaded_run import range_text
from wattline_analyzer.requests.other_work import other_work_note
from wattline_analyzer.requests.part import MeasuredPart
from wattline_analyzer.requests.stored_energies import NOT_FINAL, StoredEnergies
from wattline_analyzer.requests.table import RequestTable
from wattline_exporter.requests.division.arrays import Mask
from wattline_exporter.requests.division.spans import EnergySlots

_REMEDY = (
    "check --run-id, --start and --end, and that the times are Unix seconds of the node's clock"
)


def _requests(chosen: npt.NDArray[np.bool_]) -> str:
    count = int(np.count_nonzero(chosen))
    return "1 request" if count == 1 else f"{count:,} requests"


def requests_with_energy(
    table: RequestTable,
    slots: EnergySlots,
    counted: Mask | None = None,
    part_s: TimeRange | None = None,
) -> tuple[RequestTable, Mask | None, list[str]]:
    """Return the requests that have an energy, the mask of those that count, and notes on those
    that count.

    Those that count end in `part_s`, if it is given. Raises FetchError if there is none.
    """
    spans = table.spans
    left_out, notes = (
        _without_time(table, slots, counted)
        if table.energies is None
        else _without_energy(table.energies, counted)
    )
    if np.all(left_out if counted is None else left_out | ~counted):
        if part_s is not None:
            raise FetchError(f"no request ended in the time from {range_text(part_s)}", _REMEDY)
        if table.energies is not None:
            raise FetchError(f"no request has an energy: {'; '.join(notes)}", "ask again later")
        span = f"{local_time(slots.edges_s[0])} to {local_time(slots.edges_s[-1])}"
        raise FetchError(f"no request is in the time of the run, {span}", _REMEDY)
    table = table.take(~left_out)
    counted = None if counted is None else counted[~left_out]
    own = True if counted is None else counted
    if table.untimed is not None and np.any(table.untimed & own):
        notes.append(
            f"{_requests(table.untimed & own)} without the time of the first token "
            "(first_token_at): it is estimated, "
            "so half-widths are larger; prefill and decode of these requests are not stated"
        )
    if table.repeated:
        again = (
            "1 request again: it counts"
            if table.repeated == 1
            else f"{table.repeated:,} requests again: each counts"
        )
        notes.append(f"{again} once")
    if table.energies is None and (note := other_work_note(spans, slots)):
        notes.append(note)
    return table, counted, notes


def _without_time(
    table: RequestTable, slots: EnergySlots, counted: Mask | None
) -> tuple[Mask, list[str]]:
    """Return the mask of the requests without a time in the slots, (N,), and notes."""
    start_s = float(slots.edges_s[0])
    end_s = float(slots.edges_s[-1])
    spans = table.spans
    notes = []
    outside = (spans.ended_s <= start_s) | (spans.arrived_s >= end_s)
    partly = ~outside & ((spans.arrived_s < start_s) | (spans.ended_s > end_s))
    has_no_time = ~outside & (spans.ended_s <= spans.arrived_s)
    own = True if counted is None else counted
    if np.any(outside & own):
        notes.append(f"{_requests(outside & own)} outside of the time: left out")
    if np.any(has_no_time & own):
        notes.append(
            f"{_requests(has_no_time & own)} with the same start and end: left out; record "
            "fractions of a second"
        )
    if np.any(partly & own):
        notes.append(
            f"{_requests(partly & own)} partly outside of the time: without the energy of that part"
        )
    return outside | has_no_time, notes


def _without_energy(stored: StoredEnergies, counted: Mask | None) -> tuple[Mask, list[str]]:
    """Return the mask of the requests to which the exporter gave no energy, (N,), and notes."""
    losses = stored.losses
    own = losses if counted is None else losses[counted]
    notes = []
    if np.any(own == NOT_FINAL):
        notes.append(f"{_requests(own == NOT_FINAL)} whose energy is not final yet: left out")
    is_lost = (own > 0) & (own < NOT_FINAL)
    if np.any(is_lost):
        notes.append(
            f"{_requests(is_lost)} without energy in the exporter: left out; the cause is in the "
            "answer of GET /api/v1/requests/ID"
        )
    return losses > 0, notes


def part_notes(
    table: RequestTable, counted: Mask | None, part: MeasuredPart | None, client: str | None
) -> list[str]:
    """Return notes on a part of the time, and on the requests in it that are not of the client."""
    if counted is None or part is None:
        return []
    spans = table.spans
    start_s, end_s = part.span_s
    notes = [
        f"a part of {end_s - start_s:.0f} s counts: {local_time(start_s)} to {local_time(end_s)}"
    ]
    inside = (spans.ended_s > start_s) & (spans.arrived_s < end_s)
    if client is not None:
        others = int(np.count_nonzero(inside & ~counted))
        notes += (
            [f"other requests to the server in this time, whose energy is in the rest: {others:,}"]
            if others
            else []
        )
        return notes
    before = counted & (spans.arrived_s < start_s)
    after = inside & ~counted
    if np.any(before):
        notes.append(
            f"{_requests(before)} began before this part and ended in it: with all of their energy"
        )
    if np.any(after):
        notes.append(f"{_requests(after)} ended after this part: they count in the next one")
    return notes
