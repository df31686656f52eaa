"""What held during a run, from series that show a state at each scrape. Pure."""

from __future__ import annotations

import pandas as pd

from analyzer.model.samples import RunFrames, of
from analyzer.model.timeline import Window
from exporter.contract import metrics as m

ESTIMATE = "model"
"""The method that measures nothing: power taken from utilization by --cpu.power-model."""
SCRAPED = "scraped_power"
"""The method of a range whose devices have no counter: the analyzer's integral of power as it was scraped."""


def around(rows: pd.DataFrame, start_s: float, end_s: float) -> pd.DataFrame:
    """The rows in [start_s, end_s], those of the last scrape before it, and those of the first after it."""
    before, after = rows["t"] < start_s, rows["t"] > end_s
    latest_s, next_s = rows["t"][before].max(), rows["t"][after].min()  # NaN, which equals nothing, where there is none
    chosen: pd.DataFrame = rows[~before & ~after | (rows["t"] == latest_s) | (rows["t"] == next_s)]
    return chosen.sort_values("t", kind="stable")


def methods(frames: RunFrames, window: Window, instance: str, component: str, device: str) -> tuple[str, ...]:
    """Where the device's energy came from while the run was on, in that order; empty where the exporter does not say.

    What the last scrape before the run showed was in force at its begin. A first scrape after it counts where there is
    no other. Where the clocks disagree nobody knows what was when, so all that was seen counts.
    """
    metric, label = (m.GPU_ENERGY_METHOD, "uuid") if component == "gpu" else (m.CPU_ENERGY_METHOD, "package")
    rows = of(frames.raw, metric, instance=instance, **{label: device})
    if window.aligned:
        rows = around(rows, window.start_s, window.end_s)
        known = rows[rows["t"] <= window.end_s]
        rows = known if len(known) else rows
    return tuple(dict.fromkeys(rows.sort_values("t", kind="stable")["method"]))


def suspicions(frames: RunFrames, window: Window, instance: str, uuid: str) -> dict[str, float | None]:
    """Why the GPU's energy was not to be trusted, and how long after the run's begin that was first seen.

    A suspicion takes a while to form, so the first scrape after the run counts. The time is None where the clocks
    disagree.
    """
    rows = of(frames.raw, m.GPU_ENERGY_SUSPECT, instance=instance, uuid=uuid)
    rows = rows[rows["value"] > 0]
    if window.aligned:
        seen = around(of(frames.raw, m.GPU_ENERGY_SUSPECT, instance=instance, uuid=uuid), window.start_s, window.end_s)
        rows = seen[(seen["value"] > 0) & (seen["t"] >= window.start_s)]
    first = rows.sort_values("t", kind="stable").drop_duplicates("reason")
    return {
        row["reason"]: max(row["t"] - window.start_s, 0.0) if window.aligned else None
        for row in first.to_dict("records")
    }
