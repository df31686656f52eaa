"""What a file of another tool holds, in the house's units: series with real timestamps, and the runs it tells of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

from exporter.contract.metrics import Metric
from exporter.contract.run import Outcome

_FIRST_PART = 8
ALL_GPUS = "all"
"""The index of what stands for all GPUs of a node, where the file has but their sum."""


def short(uuid: str) -> str:
    """What a GPU is called of which a file tells its UUID and no index: the first part of it, `3f2a9c1e`."""
    bare = uuid.partition("-")[2] or uuid
    return bare.partition("-")[0] if len(bare.partition("-")[0]) == _FIRST_PART else bare


ONLY_GPU = "unnamed"
"""The index of the one GPU of a file that names none: nobody knows which of the node's it was."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """`line` counts from 1; 0 is the file as a whole."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class FileEnergy:
    """Joules from the file's own counter over the run; `device` is a GPU's UUID or index, a package for the CPU.

    `index` is that of a GPU beside its UUID, where the file tells it.
    """

    component: str
    device: str
    energy_j: float
    half_j: float | None = None
    index: str = ""


@dataclass(frozen=True, slots=True)
class FilePhase:
    name: str
    start_s: float
    end_s: float
    work: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileRun:
    """A run that a file tells of; `gpus` are UUIDs or indices, empty where it has all of the power logs'.

    `caveats` are codes of what is wrong with the file's own figures, see `analyzer.assess.imported`.
    """

    name: str
    workload: str
    start_s: float
    end_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    work: Mapping[str, float] = field(default_factory=dict)
    results: Mapping[str, float] = field(default_factory=dict)
    energies: tuple[FileEnergy, ...] = ()
    phases: tuple[FilePhase, ...] = ()
    gpus: tuple[str, ...] = ()
    outcome: Outcome | None = "ok"
    duration_s: float | None = None
    caveats: tuple[str, ...] = ()


@dataclass(slots=True)
class Tracks:
    """Series as they grow, by metric and labels; `gpu` and `uuid` are empty where the file does not tell."""

    found: dict[tuple[Metric, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, metric: Metric, labels: Mapping[str, str], t_s: float, value: float) -> None:
        self.found.setdefault((metric, tuple(sorted(labels.items()))), []).append((t_s, value))

    def __len__(self) -> int:
        return sum(len(samples) for samples in self.found.values())


@dataclass(slots=True)
class Content:
    """One file, or a folder that belongs together. Without `runs`, a file with `tracks` is a log beside a run."""

    path: Path
    form: str
    tracks: Tracks = field(default_factory=Tracks)
    gpu_info: dict[str, dict[str, str]] = field(default_factory=dict)
    """By index: name, driver_version, pci_bus_id."""
    runs: list[FileRun] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read: `zone` is that of timestamps which name none."""

    zone: tzinfo


class UnreadableError(Exception):
    """The file is not what its format asks for; the text has cause and remedy."""
