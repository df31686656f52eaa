"""Requests that have an energy, and notes on the others."""

from __future__ import annotations

import numpy as np

from analyzer.sources.base import FetchError
from analyzer.sources.requests.other_work import other_work_note
from analyzer.studies.requests.table import RequestTable
from exporter.request_energy.spans import EnergySlots


def requests_with_energy(table: RequestTable, slots: EnergySlots) -> tuple[RequestTable, list[str]]:
    """Return the requests that have an energy, and notes on the others. Raises FetchError if there is none."""
    start_s, end_s = float(slots.edges_s[0]), float(slots.edges_s[-1])
    spans, notes = table.spans, []
    outside = (spans.ended_s <= start_s) | (spans.arrived_s >= end_s)
    partly = ~outside & ((spans.arrived_s < start_s) | (spans.ended_s > end_s))
    has_no_time = ~outside & (spans.ended_s <= spans.arrived_s)
    if np.all(outside | has_no_time):
        raise FetchError(
            f"no request is in the time of the run, {start_s:.0f} to {end_s:.0f}",
            "check --run-id, --start and --end, and that the times are Unix seconds of the node's clock",
        )
    if np.any(outside):
        notes.append(f"requests outside of the time, which are left out: {np.count_nonzero(outside)}")
    if np.any(has_no_time):
        notes.append(
            "requests that ended at the time at which they started, which are left out; record fractions of a second: "
            f"{np.count_nonzero(has_no_time)}"
        )
    if np.any(partly):
        notes.append(f"requests partly outside of the time, which lack that energy: {np.count_nonzero(partly)}")
    table = table.take(~(outside | has_no_time))
    if table.untimed is not None:
        untimed = np.count_nonzero(table.untimed)
        notes.append(f"requests without first_token_at, whose energy counts as error of prefill and decode: {untimed}")
    if table.repeated:
        notes.append(f"requests that occur more than once and count once: {table.repeated}")
    if note := other_work_note(spans, slots):
        notes.append(note)
    return table, notes
