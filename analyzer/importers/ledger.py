"""A run as the exporter's ledger would show it: what assembled energies, work and results become in series. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from analyzer.assess.imported import WALL_ENERGY, WALL_RATIO
from analyzer.importers.assemble import AssembledRun
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

LONGEST = 128
"""Of a label's text, in characters."""

Row = tuple[Metric, Mapping[str, str], float]


def rows(run: AssembledRun, about: Mapping[str, str]) -> Iterator[Row]:
    """`about` are the run's labels."""
    yield from _node(run)
    yield from _run(run, about)
    yield from _energies(run)
    yield from _done(run)


def _node(run: AssembledRun) -> Iterator[Row]:
    methods = {(energy.component, energy.device): energy.method for energy in run.energies}
    for gpu in run.gpus:
        where = {"gpu": gpu.index, "uuid": gpu.uuid}
        info = dict.fromkeys(("name", "architecture", "pci_bus_id", "driver_version"), "")
        yield m.GPU_INFO, where | info | dict(gpu.info), 1.0
        yield m.GPU_ENERGY_METHOD, where | {"method": methods["gpu", gpu.uuid]}, 1.0
    for (component, device), method in methods.items():
        if component == "cpu":
            named = "rapl" if method in ("counter", "integral") else method
            yield m.CPU_ENERGY_METHOD, {"package": device, "method": named}, 1.0


def _run(run: AssembledRun, about: Mapping[str, str]) -> Iterator[Row]:
    own, told = {"run_id": run.run_id}, run.told
    labels = {f"label_{name}": text[:LONGEST] for name, text in about.items()}
    yield m.RUN_INFO, {**own, "workload": told.workload[:LONGEST], **labels}, 1.0
    yield m.RUN_START, own, told.start_s
    yield m.RUN_END, own, told.end_s
    yield m.RUN_DURATION, own, told.end_s - told.start_s if told.duration_s is None else told.duration_s
    if told.outcome:
        yield m.RUN_OUTCOME, {**own, "outcome": told.outcome}, 1.0
    for gpu in run.gpus:
        yield m.RUN_GPU_INFO, {**own, "gpu": gpu.index, "uuid": gpu.uuid}, 1.0


def _energies(run: AssembledRun) -> Iterator[Row]:
    own, indices = {"run_id": run.run_id}, {gpu.uuid: gpu.index for gpu in run.gpus}
    for energy in run.energies:
        device = {**own, "component": energy.component, "device": energy.device}
        yield m.RUN_ENERGY, device, energy.energy_j
        if energy.half_j is not None:
            yield m.RUN_ENERGY_UNCERTAINTY, device, energy.half_j
        if energy.covered_ratio is not None:
            yield m.RUN_COVERED_RATIO, device, energy.covered_ratio
        if energy.max_w is not None and energy.component == "gpu":
            yield m.RUN_POWER_MAX, {**own, "gpu": indices[energy.device], "uuid": energy.device}, energy.max_w


def _done(run: AssembledRun) -> Iterator[Row]:
    own = {"run_id": run.run_id}
    for unit, amount in run.told.work.items():
        yield m.RUN_WORK, {**own, "unit": unit}, amount
    results = dict(run.told.results)
    if run.wall is not None:
        results |= {WALL_ENERGY: run.wall.energy_j, WALL_RATIO: run.wall.covered_ratio or 0.0}
    for name, value in results.items():
        yield m.RUN_RESULT, {**own, "name": name}, value
    seconds: dict[str, float] = {}
    for phase in run.told.phases:
        seconds[phase.name] = seconds.get(phase.name, 0.0) + phase.end_s - phase.start_s
        for unit, amount in phase.work.items():
            yield m.RUN_PHASE_WORK, {**own, "phase": phase.name, "unit": unit}, amount
    for name, duration_s in seconds.items():
        yield m.RUN_PHASE_SECONDS, {**own, "phase": name}, duration_s
        for component, joules in run.phase_energies.get(name, {}).items():
            yield m.RUN_PHASE_ENERGY, {**own, "phase": name, "component": component}, joules
