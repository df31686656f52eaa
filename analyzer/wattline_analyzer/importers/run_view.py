"""Ledger series of a Wattline run from the exporter's response in metrics.yml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.contract.run import RunView
from wattline.contract.work import SHARE_POLICY

ViewRow = tuple[Metric, Mapping[str, str], float]


def parse_view(metrics: Mapping[str, Any]) -> RunView | None:
    """Return the response, None if the file has only a part of it. Raises ValueError for an invalid
    one.
    """
    if "run_id" not in metrics:
        return None
    try:
        return RunView.model_validate(
            {"ended_at": None, "outcome": None, "state": "ended", **metrics}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def view_rows(run_id: str, view: RunView) -> Iterator[ViewRow]:
    """Yield the series of the ledger that a file without the response does not have, except those
    of phases.
    """
    own = {"run_id": run_id}
    if view.work_unit is not None:
        yield m.RUN_WORK_UNIT, {**own, "unit": view.work_unit}, 1.0
    if view.work_reported_at is not None:
        yield m.RUN_WORK_TIMESTAMP, own, view.work_reported_at
    for one in view.emissions_grams:
        kind = {"component": one.component, "basis": one.basis, "quality": one.quality}
        yield m.RUN_EMISSIONS, {**own, **kind}, one.grams
    for gpu in view.gpus:
        if gpu.uuid in view.integrated_energy_joules:
            where = {**own, "gpu": gpu.gpu, "uuid": gpu.uuid}
            yield m.RUN_INTEGRATED_ENERGY, where, view.integrated_energy_joules[gpu.uuid]
    for metric, values, more in (
        (m.RUN_COVERED_RATIO, view.covered_ratio, {}),
        (m.RUN_ENERGY_BEFORE_USE, view.energy_before_use_joules, {}),
        (m.RUN_ATTRIBUTED_ENERGY, view.attributed_energy_joules, {"policy": SHARE_POLICY}),
    ):
        for component, devices in values.items():
            for device, value in devices.items():
                yield metric, {**own, "component": component, "device": device, **more}, value


def view_phase_rows(run_id: str, view: RunView) -> Iterator[ViewRow]:
    """Yield seconds, work and energies of the phases."""
    for phase in view.phases:
        own = {"run_id": run_id, "phase": phase.name}
        yield m.RUN_PHASE_SECONDS, own, phase.duration_seconds
        for unit, amount in phase.work.items():
            yield m.RUN_PHASE_WORK, {**own, "unit": unit}, amount
        for component, joules in phase.energy_joules.items():
            yield m.RUN_PHASE_ENERGY, {**own, "component": component}, joules
        for component, half_j in phase.energy_uncertainty_joules.items():
            yield m.RUN_PHASE_ENERGY_UNCERTAINTY, {**own, "component": component}, half_j
