"""What a GPU and a source have told last, and whether they still answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from exporter.contract.metrics import GPU_MIG_INFO, GPU_UTILIZATION
from exporter.energy.plausibility import EnergyCheck
from exporter.model import Batch, Device, Gpu, GpuProcess, Reading


@dataclass
class GpuState:
    """A GPU that has introduced itself; `read_s` is when it last answered."""

    info: Gpu
    device: Device
    read_s: float
    readings: dict[tuple[str, tuple[str, ...]], Reading] = field(default_factory=dict)
    """By metric and labels."""
    processes: tuple[GpuProcess, ...] = ()
    up: bool = True
    check: EnergyCheck = field(default_factory=EnergyCheck)

    def is_at_work(self) -> bool:
        """Whether anything ran on it at the last look; as far as the card tells."""
        utilization = self.readings.get((GPU_UTILIZATION.name, (self.info.index, self.info.uuid, "gpu")))
        if utilization is not None and utilization.value > 0:
            return True
        return any(process.utilization != 0 for process in self.processes)

    def instances(self) -> list[str]:
        """The UUIDs of its MIG instances."""
        return [labels[1] for name, labels in self.readings if name == GPU_MIG_INFO.name]


@dataclass
class SourceState:
    """The health of a source, and what it last read apart from energies."""

    period_s: float
    up: bool = False
    read_at: float | None = None
    read_s: float | None = None
    changed_s: float = 0.0
    batch: Batch = field(default_factory=Batch)
    reads: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    restarts: int = 0
    trouble: str = ""

    def count(self, outcome: str, took_s: float) -> None:
        self.reads[outcome] = self.reads.get(outcome, 0) + 1
        self.seconds[outcome] = self.seconds.get(outcome, 0.0) + took_s
