"""Table of runs for variability: value, clock, temperature and power on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from analyzer.assess import run as assess
from analyzer.energy.phases import span
from analyzer.model.devices import Device
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, samples
from analyzer.sources.base import SampleSource
from analyzer.studies.objective import units_of_one
from exporter.contract import metrics as m

_MEASURE = "measure"


def variability_rows(
    source: SampleSource, all_frames: Sequence[RunFrames], of: str, by: str, log: Callable[[str], None]
) -> tuple[pd.DataFrame, str]:
    """Return the frame for `analyzer.studies.variability`, and the unit of its values.

    Runs on several GPUs, with an outcome other than ok, or without the value are left out and logged.
    """
    found, units = [], set()
    for frames in all_frames:
        try:
            report = assess.assess(frames)
        except assess.NoEnergyError as error:
            log(f"left out: {error}")
            continue
        valued = _value(report, of)
        if report.outcome != "ok" or len(report.gpus) != 1 or valued is None:
            log(f"left out: run {report.run_id}: {_reason(report, of)}")
            continue
        value, unit = valued
        device = report.gpus[0]
        units.add(unit)
        row = {
            "gpu": f"{device.instance} {device.device}".strip(),
            "value": value,
            "placement": report.labels.get(by, ""),
        }
        found.append(row | _covariates(source, frames, device))
    return pd.DataFrame(found), " and ".join(sorted(units))


def _reason(report: Report, of: str) -> str:
    if report.outcome != "ok":
        return report.outcome or "not ended"
    return f"no {of}" if len(report.gpus) == 1 else f"on {len(report.gpus)} GPUs"


def _value(report: Report, of: str) -> tuple[float, str] | None:
    work = report.work[0] if report.work else None
    power = report.mean_power_w
    if of == "time":
        if work and work.per_second:
            return 1 / work.per_second, f"seconds per {units_of_one(work.unit)}"
        return (report.duration_s, "seconds") if report.duration_s > 0 else None
    if of == "energy":
        if work and work.energy_per_unit and work.energy_per_unit.value > 0:
            return work.energy_per_unit.value, f"joules per {units_of_one(work.unit)}"
        return (report.headline.value, "joules") if report.headline and report.headline.value > 0 else None
    if of == "power":
        return (power.value, "watts, mean") if power and power.value > 0 else None
    value = report.results.get(of)
    return (value, of) if value is not None and value > 0 else None


def _covariates(source: SampleSource, frames: RunFrames, device: Device) -> dict[str, float]:
    """Return medians over the phase `measure`, over the whole run if there is none."""
    where = {"instance": device.instance} if device.instance else {}
    seconds = samples(
        frames.ledger, m.RUN_PHASE_SECONDS, run_id=frames.run_id, instance=device.instance, phase=_MEASURE
    )
    ages = samples(frames.ledger, m.RUN_DURATION, run_id=frames.run_id, instance=device.instance)
    window = span(seconds) or span(ages)
    if window is None:
        return {}
    own = {**where, "uuid": device.device}
    found = {}
    for name, metric, more in (
        ("sm_clock_hertz", m.GPU_CLOCK, {"domain": "sm"}),
        ("temperature_celsius", m.GPU_TEMPERATURE, {"sensor": "gpu"}),
        ("power_watts", m.GPU_POWER, {}),
    ):
        rows = samples(source.fetch([metric], {**own, **more}, *window), metric, **more)
        found[name] = float(np.median(rows.value)) if len(rows) else float("nan")
    return found
