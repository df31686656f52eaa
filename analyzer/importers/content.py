"""Contents of an imported file: series with timestamps, in Wattline's units, and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

from exporter.contract.metrics import Metric
from exporter.contract.run import Outcome

_FIRST_PART = 8
ALL_GPUS = "all"
"""Index of all GPUs of a node together, if the file has only their sum."""
ONLY_GPU = "unnamed"
"""Index of the only GPU of a file that gives neither index nor UUID."""


def short_uuid(uuid: str) -> str:
    """Return the first part of a UUID, `3f2a9c1e`, the index of a GPU whose file gives no index."""
    bare = uuid.partition("-")[2] or uuid
    return bare.partition("-")[0] if len(bare.partition("-")[0]) == _FIRST_PART else bare


@dataclass(frozen=True, slots=True)
class BadLine:
    """Unreadable line, counted from 1; 0 is the file as a whole."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class FileEnergy:
    """Energy of the run by the file's own counter; `device` is a GPU's UUID or index, or a CPU package.

    `index` is the index of a GPU that is named by UUID, if the file contains it.
    """

    component: str
    device: str
    energy_j: float
    half_j: float | None = None
    index: str = ""


@dataclass(frozen=True, slots=True)
class FilePhase:
    """Phase of a run, with its work."""

    name: str
    start_s: float
    end_s: float
    work: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileRun:
    """Run in a file; `gpus` are UUIDs or indices, empty if the run used all GPUs of the power logs.

    `caveats` are codes of known defects of the file's own figures, see `analyzer.assess.imported`.
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
class SeriesBuilder:
    """Growing series by metric and labels; `gpu` and `uuid` are empty if the file does not contain them."""

    found: dict[tuple[Metric, tuple[tuple[str, str], ...]], list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, metric: Metric, labels: Mapping[str, str], t_s: float, value: float) -> None:
        self.found.setdefault((metric, tuple(sorted(labels.items()))), []).append((t_s, value))

    def __len__(self) -> int:
        return sum(len(samples) for samples in self.found.values())


@dataclass(slots=True)
class FileContent:
    """Content of one file, or of a folder; without `runs` it is a log."""

    path: Path
    form: str
    series: SeriesBuilder = field(default_factory=SeriesBuilder)
    gpu_info: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name, driver_version and pci_bus_id by index."""
    runs: list[FileRun] = field(default_factory=list)
    bad: list[BadLine] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    """Codes of the reader's assumptions, for the reports of all runs that use the file."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading a file; `zone` is the time zone of timestamps that name none."""

    zone: tzinfo


class UnreadableError(Exception):
    """File that cannot be read as its format; the message has cause and remedy."""
