"""Contents of an imported file: series with timestamps, in Wattline's units, and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import TypeVar

from wattline.contract.api import MAX_LABEL_VALUE, Outcome
from wattline.contract.metrics import Metric
from wattline.contract.run import Run
from wattline_analyzer.core.sources.base import Progress, no_progress
from wattline_analyzer.core.times import LogTimes
from wattline_analyzer.importers.spool import Spool, StoredSamples

_T = TypeVar("_T")

_FIRST_PART = 8
_BAD_LINES_KEPT = 5
_MOST_SERIES = 10_000
ALL_GPUS = "all"
"""Index of all GPUs of a node together, if the file has only their sum."""
ONLY_GPU = "unnamed"
"""Index of the only GPU of a file that gives neither index nor UUID."""


def short_uuid(uuid: str) -> str:
    """Return the first part of a UUID, `3f2a9c1e`, the index of a GPU whose file gives no index."""
    bare = uuid.partition("-")[2] or uuid
    return bare.partition("-")[0] if len(bare.partition("-")[0]) == _FIRST_PART else bare


class UnreadableError(Exception):
    """File that cannot be read as its format; the message has cause and remedy."""


@dataclass(slots=True)
class BadLines:
    """Unreadable lines of a file: their number, and line number (0 for the whole file) and reason
    of the first.
    """

    count: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, reason: str) -> None:
        self.count += 1
        if self.count <= _BAD_LINES_KEPT:
            self.first.append((line, reason))


@dataclass(frozen=True, slots=True)
class FileEnergy:
    """Energy of the run by the file's own counter; `device` is a GPU's UUID or index, or a CPU
    package.

    `index` is the index of a GPU that is named by UUID, if the file contains it; `method` is the
    source of the energy.
    """

    component: str
    device: str
    energy_j: float
    half_j: float | None = None
    index: str = ""
    method: str = "counter"


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

    `caveats` are codes of known defects of the file's own figures, see
    `wattline_analyzer.report.assess_imported`.
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
    record: Run | None = None
    """The exporter's run, if the file has it."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading a file; `zone` is the time zone of timestamps that name none.

    `starts_in_second` says that a log that starts in a repeated hour starts in the second one.
    """

    zone: tzinfo
    spool: Spool = field(default_factory=Spool)
    progress: Progress = no_progress
    """Callback with the name of a step and its progress, from 0 to 1; 1 ends it."""
    starts_in_second: bool = False


@dataclass(slots=True)
class FileContent:
    """Content of one file, or of a folder; without `runs` it is a log."""

    path: Path
    form: str
    options: ReadOptions
    series: dict[tuple[Metric, tuple[tuple[str, str], ...]], StoredSamples] = field(
        default_factory=dict
    )
    """Samples by metric and labels; `gpu` and `uuid` are empty if the file does not contain them.
    """
    gpu_info: dict[str, dict[str, str]] = field(default_factory=dict)
    """Name, architecture, driver_version and pci_bus_id by index."""
    runs: list[FileRun] = field(default_factory=list)
    lines: int = 0
    """Number of lines that were read."""
    bad: BadLines = field(default_factory=BadLines)
    without_power: Counter[str] = field(default_factory=Counter)
    """Number of lines without power, by GPU index, or `""` for the whole line."""
    notes: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    """Codes of the reader's assumptions, for the reports of all runs that use the file."""
    times: LogTimes = field(init=False)

    def __post_init__(self) -> None:
        self.times = LogTimes(self.options.zone, starts_in_second=self.options.starts_in_second)

    def samples(self, metric: Metric, labels: Mapping[str, str]) -> StoredSamples:
        """Return the growing series of a metric with these labels.

        Raises ValueError for a label that is too long, UnreadableError for too many series, which
        no node has.
        """
        key = metric, tuple(sorted(labels.items()))
        if key not in self.series:
            for name, text in labels.items():
                if len(text) > MAX_LABEL_VALUE:
                    raise ValueError(
                        f"{name} has {len(text)} characters, expected at most {MAX_LABEL_VALUE}"
                    )
            if len(self.series) >= _MOST_SERIES:
                raise UnreadableError(
                    f"cannot import {self.path}: more than {_MOST_SERIES} series; check the column "
                    "of the GPU's index"
                )
            self.series[key] = StoredSamples(self.options.spool)
        return self.series[key]

    def take_each(self, rows: Iterable[tuple[int, _T]], take: Callable[[_T], None]) -> None:
        """Pass each row, which has the number of its line, to `take`; a row that cannot be read is
        a bad line.
        """
        for number, row in rows:
            try:
                take(row)
            except KeyError as error:
                self.bad.add(number, f"no {error.args[0]}")
            except (TypeError, ValueError, AttributeError) as error:
                self.bad.add(number, str(error))
            else:
                self.lines += 1
        self.notes += self.times.notes(self.path)
        for index, count in self.without_power.items():
            device = f" of GPU {index}" if index else ""
            self.notes.append(
                f"{self.path}: no power in {count} line{'s' if count > 1 else ''}{device}"
            )
