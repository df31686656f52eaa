"""Samples that contradict each other, that are missing, or that begin long after the run did. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.energy import checks as quality
from analyzer.energy import states
from analyzer.energy.checks import Finding
from analyzer.model.report import Device
from analyzer.model.samples import GAP_FACTOR, RunFrames, Samples, gaps, median_spacing_s, of
from analyzer.model.timeline import Window
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

_AS_IS_S = 60.0
"""A begin that is missing by less is a late scrape, which the counter's bound takes in."""

_NAMES = ((m.GPU_ENERGY, "energy"), (m.GPU_POWER, "power"))


@dataclass(frozen=True, slots=True)
class Missing:
    """For how long after the run's begin there is nothing, and what is too short to be a gap."""

    begin_s: float
    least_s: float


def missing_begin_s(series: Samples, window: Window) -> float:
    """For how long after the run's begin there is no sample, where that is no gap between scrapes but a source that
    has forgotten them; else 0.
    """
    spacing_s = median_spacing_s(series)
    if spacing_s is None or not window.aligned:
        return 0.0
    missing_s = float(series.t[0]) - window.start_s
    return missing_s if missing_s > max(_AS_IS_S, GAP_FACTOR * spacing_s) else 0.0


def gap_findings(device: Device, window: Window, power: Samples, missing: Missing, *, of_file: bool) -> list[Finding]:
    """Without the gap that a missing begin is. An imported integral has nothing for a gap."""
    if not window.aligned:
        return []
    found = [
        gap
        for gap in gaps(power, window.start_s, window.end_s)
        if gap.duration_s > missing.least_s and not (missing.begin_s and gap.start_s <= window.start_s)
    ]
    summed = ("integral" if of_file else states.SCRAPED) in device.methods
    return quality.gap_findings(device.label, found, window.start_s, bridged=not summed)


def missing_begin_findings(subject: str, missing_s: float) -> list[Finding]:
    if not missing_s:
        return []
    text = (
        f"the source's samples begin {missing_s:.0f} s after the run did (has it forgotten older ones? Prometheus: "
        "--storage.tsdb.retention.time): energy and duration are the ledger's, of the whole run; power over time, peak "
        "and idle power are of the rest, and there is no bound from raw samples"
    )
    return [Finding("warning", "begin_missing", subject, text)]


def contradiction_findings(frames: RunFrames, device: Device, window: Window) -> list[Finding]:
    """Two values of one series at one time: nobody knows which is true."""
    findings = []
    for metric, name in _NAMES:
        count = _contradictions(frames, metric, device, window)
        if count:
            text = (
                f"its {name} has two different values at {count} time{'s' if count > 1 else ''}, of which the first "
                "counts: is it scraped by two jobs, or written by two exporters? keep one of them"
            )
            findings.append(Finding("warning", "duplicate_samples", device.label, text))
    return findings


def _contradictions(frames: RunFrames, metric: Metric, device: Device, window: Window) -> int:
    rows = of(frames.raw, metric, instance=device.instance, uuid=device.device)
    t, value = (rows[name].to_numpy(dtype=np.float64) for name in ("t", "value"))
    order = np.lexsort((value, t))
    t, value = t[order], value[order]
    during = (t[1:] >= window.start_s) & (t[1:] <= window.end_s)
    return len(np.unique(t[1:][during & (np.diff(t) == 0) & (np.diff(value) != 0)]))
