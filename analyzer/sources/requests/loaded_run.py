"""Run whose GPUs' energy is divided among requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analyzer.model.ledger import RunLedger, parse_ledger
from analyzer.model.sample_table import RunFrames
from analyzer.model.timeline import other_runs
from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.fetch import Place, TimeRange
from analyzer.sources.runs.load import Clock, load_run


@dataclass(frozen=True, slots=True)
class RunSearch:
    """A run's id, the seconds to search back for it, and how to wait for its end."""

    run_id: str
    since_s: float
    clock: Clock
    log: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """Samples of a run, with its GPUs; `beside` are the other runs that used these during the run."""

    frames: RunFrames
    ledger: RunLedger
    places: Sequence[Place]
    beside: frozenset[str]

    @property
    def run_id(self) -> str:
        return self.ledger.run_id

    @property
    def span_s(self) -> TimeRange:
        """Begin and end of the run in Unix seconds."""
        windows = self.ledger.windows.values()
        return min(window.start_s for window in windows), max(window.end_s for window in windows)


def load_gpu_run(source: SampleSource, search: RunSearch) -> LoadedRun:
    """Load a run. Raises FetchError, also for a run without GPUs."""
    run_id = search.run_id
    frames = load_run(source, run_id, search.since_s, search.clock, search.log)
    ledger = parse_ledger(frames.ledger, run_id)
    places = [(one.instance, one.device) for one in ledger.devices if one.component == "gpu"]
    if not places:
        raise FetchError(
            f"run {run_id} used no GPU", "start the run with --gpus, or its server with CUDA_VISIBLE_DEVICES"
        )
    beside = {
        run.run_id
        for run in other_runs(frames.others, run_id)
        if any(run.instance == at and uuid in run.gpus and run.overlaps(ledger.windows[at]) for at, uuid in places)
    }
    return LoadedRun(frames, ledger, places, frozenset(beside))
