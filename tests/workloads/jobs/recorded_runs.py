"""Runs of jobs in this process, as the exporter and the record on disk have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wattline.contract.run import Run
from wattline.contract.run_files import IterationEvent, PhaseEvent, parse_event

RECORD = "record"
"""Name of the folder of the record."""


@dataclass(frozen=True)
class RecordedRun:
    run: Run
    iterations: list[IterationEvent]
    phases: list[str]


def recorded_run(run: Run, folder: Path) -> RecordedRun:
    lines = (folder / RECORD / "events.jsonl").read_text().splitlines()
    events = [parse_event(line) for line in lines]
    iterations = [event for event in events if isinstance(event, IterationEvent)]
    return RecordedRun(
        run, iterations, [event.name for event in events if isinstance(event, PhaseEvent)]
    )
