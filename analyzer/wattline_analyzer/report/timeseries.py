"""Power of a run's devices over time, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import samples
from wattline_analyzer.core.samples import Samples

_POWER_COLUMNS = (
    "t_unix_seconds",
    "run_seconds",
    "instance",
    "component",
    "device",
    "label",
    "metric",
    "value",
    "estimate",
)


@dataclass(frozen=True, slots=True)
class DeviceSeries:
    """Raw samples of a device: power in W or an energy counter in J."""

    device: ReportDevice
    metric: Metric
    samples: Samples


def power_samples(recorded: RecordedRun, report: Report) -> list[DeviceSeries]:
    """Return power and energy counter of each GPU, and the power of each CPU package."""
    found = []
    for device in report.devices:
        if device.component == "gpu":
            wanted = [(metric, {"uuid": device.device}) for metric in (m.GPU_POWER, m.GPU_ENERGY)]
        elif device.component == "cpu":
            wanted = [(m.CPU_POWER, {"package": device.device, "zone": "package"})]
        else:
            continue
        for metric, labels in wanted:
            series = samples(recorded.raw, metric, instance=device.instance, **labels)
            found.append(DeviceSeries(device, metric, series))
    return found


def power_csv(every: Iterable[DeviceSeries], started_at_s: float) -> str:
    """Return a line per sample; `run_seconds` is relative to the start of the run.

    `metric` is the contract's name. `estimate` marks the power of a device that was not measured.
    """
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(_POWER_COLUMNS)
    for one in every:
        device = one.device
        t_s = one.samples.t
        own = (device.instance, device.component, device.device, device.label, one.metric.name)
        columns = t_s.tolist(), (t_s - started_at_s).round(3).tolist(), one.samples.value.tolist()
        writer.writerows(
            (t, since, *own, value, device.estimated)
            for t, since, value in zip(*columns, strict=True)
        )
    return target.getvalue()
