"""Check for work of the GPUs that no request reports."""

from __future__ import annotations

import numpy as np

from exporter.request_energy.spans import EnergySlots, RequestSpans

_MIN_SLOTS = 3
_RATIO = 0.1
"""Least power above idle without requests, relative to that with requests, that is reported."""


def other_work_note(spans: RequestSpans, slots: EnergySlots) -> str:
    """Return a note if the GPUs work while no request is in progress; empty if they do not.

    The model assigns all energy above idle to the requests in progress, in a slot that they fill partly as well.
    """
    starts_s, ends_s = slots.edges_s[:-1], slots.edges_s[1:]
    begun = np.searchsorted(np.sort(spans.arrived_s), ends_s + slots.widths_s)
    over = np.searchsorted(np.sort(spans.ended_s), starts_s - slots.widths_s)  # the sensor shows a load a moment later
    is_quiet = begun == over
    if np.count_nonzero(is_quiet) < _MIN_SLOTS or np.all(is_quiet):
        return ""
    above_j = slots.joules - np.broadcast_to(slots.idle_w, slots.joules.shape) * slots.widths_s
    quiet_w, busy_w = (float(above_j[mask].sum() / slots.widths_s[mask].sum()) for mask in (is_quiet, ~is_quiet))
    if quiet_w <= _RATIO * busy_w or not slots.idle_known:
        return ""
    return (
        f"the GPUs draw {quiet_w:.0f} W above idle while no request is in progress: the energies of the requests "
        "include work that is not reported"
    )
