"""Requests that have an energy, and notes on the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from analyzer.model.time_text import local_time
from analyzer.sources.base import FetchError
from analyzer.sources.requests.other_work import other_work_note
from analyzer.studies.requests.table import RequestTable
from exporter.request_energy.spans import EnergySlots


def _requests(chosen: npt.NDArray[np.bool_]) -> str:
    count = int(np.count_nonzero(chosen))
    return "1 request" if count == 1 else f"{count:,} requests"


def requests_with_energy(table: RequestTable, slots: EnergySlots) -> tuple[RequestTable, list[str]]:
    """Return the requests that have an energy, and notes on the others. Raises FetchError if there is none."""
    start_s, end_s = float(slots.edges_s[0]), float(slots.edges_s[-1])
    spans, notes = table.spans, []
    outside = (spans.ended_s <= start_s) | (spans.arrived_s >= end_s)
    partly = ~outside & ((spans.arrived_s < start_s) | (spans.ended_s > end_s))
    has_no_time = ~outside & (spans.ended_s <= spans.arrived_s)
    if np.all(outside | has_no_time):
        raise FetchError(
            f"no request is in the time of the run, {local_time(start_s)} to {local_time(end_s)}",
            "check --run-id, --start and --end, and that the times are Unix seconds of the node's clock",
        )
    if np.any(outside):
        notes.append(f"{_requests(outside)} outside of the time: left out")
    if np.any(has_no_time):
        notes.append(f"{_requests(has_no_time)} with the same start and end: left out; record fractions of a second")
    if np.any(partly):
        notes.append(f"{_requests(partly)} partly outside of the time: without the energy of that part")
    table = table.take(~(outside | has_no_time))
    if table.untimed is not None:
        notes.append(
            f"{_requests(table.untimed)} without the time of the first token (first_token_at): it is estimated, so "
            "half-widths are larger; prefill and decode of these requests are not stated"
        )
    if table.repeated:
        again = (
            "1 request again: it counts" if table.repeated == 1 else f"{table.repeated:,} requests again: each counts"
        )
        notes.append(f"{again} once")
    if note := other_work_note(spans, slots):
        notes.append(note)
    return table, notes
