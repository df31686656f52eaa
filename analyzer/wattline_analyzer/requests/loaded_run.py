"""Run whose GPUs' energy is divided among requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from wattline.contract.run import Run
from wattline_analyzer.core.fetch import Place, TimeRange
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_analyzer.core.timeline import OtherRun, Window
from wattline_analyzer.core.times import local_time


@dataclass(frozen=True, slots=True)
class RunSearch:
    """A run's id, the seconds to search back for it, and how to wait for its end."""

    run_id: str
    since_s: float
    clock: Clock
    log: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """A run with its GPUs; `others` are the other runs that used these during the
    run.
    """

    recorded: RecordedRun
    windows: Mapping[str, Window]
    places: Sequence[Place]
    others: Sequence[OtherRun]

    @property
    def run(self) -> Run:
        return self.recorded.run

    @property
    def run_id(self) -> str:
        return self.run.run_id

    @property
    def attributed_j(self) -> float | None:
        """Energy of its GPUs that is attributed to the run, None if it is not known."""
        return gpus_share_j(self.run)

    @property
    def span_s(self) -> TimeRange:
        """Begin and end of the run in Unix seconds."""
        windows = self.windows.values()
        return min(window.start_s for window in windows), max(window.end_s for window in windows)

    def beside(self, part_s: TimeRange | None = None) -> set[str]:
        """Return the other runs on its GPUs, also those in a part of the time."""
        start_s, end_s = part_s or self.span_s
        return {
            each.run_id for each in self.others if each.start_s < end_s and each.end_s > start_s
        }

    def check_part(self, part_s: TimeRange) -> None:
        """Raise FetchError if a time range is not in the run."""
        if part_s[1] <= self.span_s[0] or part_s[0] >= self.span_s[1]:
            raise no_samples_error(part_s)


def gpus_share_j(run: Run) -> float | None:
    """Return the energy of the GPUs that is attributed to a run, None if it is not known."""
    shares_j = [device.share_j for device in run.devices if device.component == "gpu"]
    known_j = [each for each in shares_j if each is not None]
    return sum(known_j) if len(known_j) == len(shares_j) else None


def load_gpu_run(source: SampleSource, search: RunSearch) -> LoadedRun:
    """Load a run. Raises FetchError, also for a run without GPUs."""
    run_id = search.run_id
    recorded = load_run(source, run_id, search.since_s, search.clock, search.log)
    windows = recorded.scrapes.windows
    places = [
        (device.node, device.device_id)
        for device in recorded.run.devices
        if device.component == "gpu" and device.energy_j.value is not None
    ]
    if not places:
        raise FetchError(
            f"run {run_id} used no GPU",
            "start the run with --gpus, or its server with CUDA_VISIBLE_DEVICES",
        )
    others = [
        other
        for other in recorded.others
        if any(
            other.instance == at and uuid in other.gpus and other.overlaps(windows[at])
            for at, uuid in places
        )
    ]
    return LoadedRun(recorded, windows, places, others)


def no_samples_error(span_s: TimeRange) -> FetchError:
    """Return the error of a time range, also one without a start, that has no samples of the
    run.
    """
    return FetchError(
        f"no samples of the run are in the time from {range_text(span_s)}",
        "check --start and --end; see: analyzer runs",
    )


def range_text(span_s: TimeRange) -> str:
    """Return start and end of a time range, also of one without a start."""
    start = "its start" if math.isinf(span_s[0]) else local_time(span_s[0])
    return f"{start} to {local_time(span_s[1])}"
