"""Ledger series of a Wattline run from the exporter's run in metrics.yml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.contract.run import Run
from wattline.contract.work import SHARE_POLICY

SeriesRow = tuple[Metric, Mapping[str, str], float]


def parse_run(metrics: Mapping[str, Any]) -> Run | None:
    """Return the run, None if the file has only a part of it. Raises RunFormatError."""
    if "run_id" not in metrics:
        return None
    return Run.parse({"state": "ended", **metrics})


def run_rows(run_id: str, run: Run) -> Iterator[SeriesRow]:
    """Yield the series of the ledger that a file without the run does not have, except those of
    phases.
    """
    own = {"run_id": run_id}
    if run.work_unit is not None:
        yield m.RUN_WORK_UNIT, {**own, "unit": run.work_unit}, 1.0
    if run.work_reported_at is not None:
        yield m.RUN_WORK_TIMESTAMP, own, run.work_reported_at
    for one in run.emissions:
        kind = {"component": one.component, "basis": one.basis, "quality": one.quality}
        yield m.RUN_EMISSIONS, {**own, **kind}, one.grams
    integrated_j = {device.device_id: device.integrated_j for device in run.devices}
    for gpu in run.gpus:
        if (gpu_integrated_j := integrated_j.get(gpu.uuid)) is not None:
            yield (
                m.RUN_INTEGRATED_ENERGY,
                {**own, "gpu": gpu.gpu, "uuid": gpu.uuid},
                gpu_integrated_j,
            )
    for device in run.devices:
        where = {**own, "component": device.component, "device": device.device_id}
        yield m.RUN_COVERED_RATIO, where, device.energy_j.covered_ratio
        if device.before_use_j > 0:
            yield m.RUN_ENERGY_BEFORE_USE, where, device.before_use_j
        if device.attributed_j is not None:
            yield m.RUN_ATTRIBUTED_ENERGY, {**where, "policy": SHARE_POLICY}, device.attributed_j


def run_phase_rows(run_id: str, run: Run) -> Iterator[SeriesRow]:
    """Yield seconds, work and energies of the phases."""
    for phase in run.phases:
        own = {"run_id": run_id, "phase": phase.name}
        yield m.RUN_PHASE_SECONDS, own, phase.duration_s
        for unit, amount in phase.work.items():
            yield m.RUN_PHASE_WORK, {**own, "unit": unit}, amount
        for component, energy in phase.energies_j.items():
            where = {**own, "component": component}
            if energy.value is not None:
                yield m.RUN_PHASE_ENERGY, where, energy.value
            if energy.half_width is not None:
                yield m.RUN_PHASE_ENERGY_UNCERTAINTY, where, energy.half_width
