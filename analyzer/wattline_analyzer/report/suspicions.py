"""Findings from the exporter's suspicions about the energy of a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from wattline.contract import metrics as m
from wattline_analyzer.core.run_report import Finding, Level
from wattline_analyzer.core.sample_table import SampleTable, around, rows_of
from wattline_analyzer.core.timeline import Window

_SUSPICIONS: Mapping[str, tuple[Level, str]] = {
    "frozen": (
        "bad",
        (
            "its energy counter did not change while power was drawn, so that its energy is too "
            "low: "
            "do not use it"
        ),
    ),
    "implausible": (
        "warning",
        (
            "its energy counter jumped by more than the GPU can draw; integrated power replaces "
            "the "
            "jump"
        ),
    ),
    "aliasing": (
        "warning",
        (
            "no energy counter, and its sensor samples a part of the time: error up to 80 % with a "
            "load of similar period"
        ),
    ),
    "stuck": (
        "bad",
        (
            "no energy counter, and its power did not change for 5 s or more while work ran: the "
            "power "
            "is not measured"
        ),
    ),
    "disagrees": (
        "warning",
        (
            "energy counter and averaged power differed by more than 5 % for two minutes; at least "
            "one "
            "is inaccurate"
        ),
    ),
}


def suspicions(
    raw: SampleTable, window: Window, instance: str, uuid: str
) -> dict[str, float | None]:
    """Return the exporter's suspicions about the GPU's energy, with the seconds from the start to
    the first scrape.

    A suspicion takes time to form, so that the first scrape after the run counts. The time is None
    where the clocks disagree.
    """
    rows = rows_of(raw, m.GPU_ENERGY_SUSPECT, instance=instance, uuid=uuid)
    if window.aligned:
        rows = around(rows, window.start_s, window.end_s)
        rows = rows.take(rows.t >= window.start_s)
    rows = rows.take(rows.value > 0)
    first_s = sorted((float(series.t.min()), reason) for (reason,), series in rows.groups("reason"))
    return {
        reason: max(t_s - window.start_s, 0.0) if window.aligned else None
        for t_s, reason in first_s
    }


def suspect_findings(subject: str, reasons: Mapping[str, float | None]) -> list[Finding]:
    """Return a finding for each suspicion; `reasons` are the result of `suspicions`."""
    found = []
    for reason, after_s in reasons.items():
        level, meaning = _SUSPICIONS.get(
            reason, ("warning", f"the exporter suspects its energy ({reason})")
        )
        when = "" if after_s is None else f" (first seen {after_s:.0f} s after the start)"
        found.append(
            Finding(
                level,
                f"suspect_{reason}",
                subject,
                f"{meaning}{when}; check: nvidia-smi -q -d POWER",
            )
        )
    return found
