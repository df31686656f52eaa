"""What a run drew over its time, in parts, as one would expect it of the next one like it. Pure."""

from __future__ import annotations

import math

import numpy as np

from analyzer.carbon.best_start import Profile
from analyzer.carbon.restate import energy_lines
from analyzer.model import timeline
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames

_PART_S = 300.0
_MOST_PARTS = 1_000


def profile(frames: RunFrames, report: Report) -> Profile | None:
    """At the widest measured boundary, in parts of five minutes; None where the run has no duration.

    What has no counter here is shared out by time.
    """
    measured = [boundary for boundary in report.boundaries if boundary.pue is None]
    if not measured or report.duration_s <= 0:
        return None
    boundary = measured[-1]
    count = min(max(math.ceil(report.duration_s / _PART_S), 1), _MOST_PARTS)
    edges_s = report.started_at_s + np.linspace(0.0, report.duration_s, count + 1)
    parts_j = np.zeros(count)
    lines = energy_lines(frames, report)
    windows = timeline.windows(frames)
    for instance in report.instances:
        on_s = np.clip(edges_s, windows[instance].start_s, windows[instance].end_s)
        for component in boundary.components:
            joules = math.fsum(
                device.energy.value
                for device in report.devices
                if (device.instance, device.component) == (instance, component)
            )
            risen_j = sum((np.interp(on_s, line.t, line.value) for line in lines.get((instance, component), ())), 0.0)
            rises_j = np.diff(risen_j) if np.ndim(risen_j) else np.zeros(count)
            whole_j = rises_j.sum()
            parts_j += joules * (rises_j / whole_j if whole_j > 0 else np.full(count, 1 / count))
    duration_s = report.duration_s / count
    return Profile((duration_s,) * count, tuple(float(part) for part in parts_j), boundary.name)
