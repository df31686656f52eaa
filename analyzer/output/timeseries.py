"""The power of a run's devices over time, as a table that any tool can read."""

from __future__ import annotations

import pandas as pd

from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, of
from exporter.contract import metrics as m

COLUMNS = ("t_unix_seconds", "run_seconds", "instance", "component", "device", "label", "metric", "value", "estimate")


def timeseries(frames: RunFrames, report: Report) -> pd.DataFrame:
    """Tidy, raw samples only: power (W) and energy counter (J) of each GPU, power (W) of each CPU package.

    `run_seconds` counts from the run's begin and is negative before it; `metric` is the contract's name, unit included.
    `estimate` marks the power of a device that was not measured.
    """
    parts = []
    for device in report.devices:
        if device.component == "gpu":
            wanted = [(metric, {"uuid": device.device}) for metric in (m.GPU_POWER, m.GPU_ENERGY)]
        elif device.component == "cpu":
            wanted = [(m.CPU_POWER, {"package": device.device, "zone": "package"})]
        else:
            continue
        for metric, labels in wanted:
            rows = of(frames.raw, metric, instance=device.instance, **labels).sort_values("t")
            parts.append(
                pd.DataFrame(
                    {
                        "t_unix_seconds": rows["t"],
                        "run_seconds": (rows["t"] - report.started_at_s).round(3),
                        "instance": device.instance,
                        "component": device.component,
                        "device": device.device,
                        "label": device.label,
                        "metric": metric.name,
                        "value": rows["value"],
                        "estimate": device.estimated,
                    }
                ).drop_duplicates(["t_unix_seconds"])
            )
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
