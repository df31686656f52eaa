"""Opening of the GPUs that a user or a journal names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workloads.caps.gpu_set import GpuSet
from workloads.caps.journal import Journal


def open_gpu_set(gpus: Sequence[str] | None, simulation: str | None) -> GpuSet:
    """Open `gpus` (UUIDs or indices; None: all of the node).

    `simulation` is the state file of simulated GPUs; without it NVML is used. Raises CapsError.
    """
    if simulation is not None:
        from workloads.caps.simulated import SimulatedGpuSet

        return SimulatedGpuSet(Path(simulation), gpus)
    from workloads.caps.nvml import NvmlGpuSet

    return NvmlGpuSet(gpus)


def open_journal_gpus(journal: Journal) -> GpuSet:
    """Open the GPUs whose limits `journal` records. Raises CapsError."""
    return open_gpu_set([initial.uuid for initial in journal.cards], journal.simulation)
