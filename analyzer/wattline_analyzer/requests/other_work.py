"""Check for work of the GPUs that no request reports."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from wattline.contract import metrics as m
from wattline.contract.work import SHARE_POLICY
from wattline_analyzer.core.fetch import Place, TimeRange
from wattline_analyzer.core.sample_table import samples
from wattline_analyzer.core.sources.base import SampleSource
from wattline_exporter.requests.division.pace import union_s
from wattline_exporter.requests.division.spans import (
    IDLE_RATIO,
    MIN_QUIET_S,
    EnergySlots,
    RequestSpans,
)

_RATIO = 0.1
"""Least power above idle without requests, relative to that with requests, and least part of the
samples without requests, that are reported.
"""
_IDLE_RATIO = 2 * IDLE_RATIO
"""Least power above idle without requests, relative to the idle power, which has errors, that is
reported.
"""


def working_runs(
    source: SampleSource,
    run_ids: Collection[str],
    reporter: str,
    places: Collection[Place],
    span_s: TimeRange,
) -> set[str]:
    """Return the runs that use GPUs by work of their own; those that contain other runs only are
    attributed nothing.

    All of them, if the source has no attributed energy of the run of the server either. Raises
    FetchError.
    """
    unknown = set(run_ids)
    working = set[str]()
    for name in (*sorted(run_ids), reporter) if run_ids else ():
        for instance, uuid in places:
            labels = {"component": "gpu", "device": uuid, "run_id": name, "policy": SHARE_POLICY}
            labels |= {"instance": instance} if instance else {}
            found = source.fetch((m.RUN_ATTRIBUTED_ENERGY,), labels, *span_s)
            energy = samples(found, m.RUN_ATTRIBUTED_ENERGY)
            if len(energy):
                unknown.clear()
            if len(energy) and energy.value[-1] > (energy.value[0] if len(energy) > 1 else 0.0):
                working.add(name)
    return unknown or working - {reporter}


def other_work_note(spans: RequestSpans, slots: EnergySlots) -> str:
    """Return a note if the GPUs work while no request is in progress, or if that is not known; else
    an empty one.

    The model assigns all energy above idle to the requests in progress.
    """
    starts_s = slots.edges_s[:-1]
    ends_s = slots.edges_s[1:]
    begun = np.searchsorted(np.sort(spans.arrived_s), ends_s + slots.widths_s)
    over = np.searchsorted(
        np.sort(spans.ended_s), starts_s - slots.widths_s
    )  # the sensor shows a load late
    is_quiet = begun == over
    if slots.widths_s[is_quiet].sum() < MIN_QUIET_S:
        return _unknown_note(spans, slots)
    if np.all(is_quiet):
        return ""
    idle_w = np.broadcast_to(slots.idle_w, slots.joules.shape)
    above_j = slots.joules - idle_w * slots.widths_s
    quiet_w, busy_w = (
        float(above_j[mask].sum() / slots.widths_s[mask].sum()) for mask in (is_quiet, ~is_quiet)
    )
    if quiet_w <= max(_RATIO * busy_w, _IDLE_RATIO * float(idle_w.mean())) or not slots.idle_known:
        return ""
    return (
        f"the GPUs draw {quiet_w:.0f} W above idle while no request is in progress: the energies "
        "of the requests "
        "include work that is not reported"
    )


def _unknown_note(spans: RequestSpans, slots: EnergySlots) -> str:
    """Return a note if no sample shows the power without requests, unless all samples are at the
    idle power.
    """
    covered_s = union_s(spans.arrived_s, spans.ended_s, slots.edges_s)
    busy_s = float(slots.widths_s[covered_s > 0.0].sum())
    above_j = float((slots.joules - slots.idle_j)[covered_s > 0.0].sum())
    if above_j <= _RATIO * float(slots.joules.sum()):
        return ""
    if float(covered_s.sum()) >= (1.0 - _RATIO) * busy_s:
        return (
            "too few samples are without a request: energy of work that is not reported would "
            "count as that of the "
            "requests, and the half-widths do not include this error"
        )
    return (
        f"requests are in progress for {100 * covered_s.sum() / busy_s:.0f} % of the time of their "
        "samples, and "
        "too few samples are without a request: all energy above idle of these samples counts as "
        "theirs"
    )
