"""Runs of jobs in this process, as the exporter and the record on disk have them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from wattline.contract.run import RECORD_EVENT, IterationEvent, PhaseEvent, RunView

RECORD = "record"
"""Name of the folder of the record."""


@dataclass(frozen=True)
class RecordedRun:
    run: RunView
    iterations: list[IterationEvent]
    phases: list[str]


def recorded_run(run: RunView, folder: Path) -> RecordedRun:
    lines = (folder / RECORD / "events.jsonl").read_text().splitlines()
    events = [RECORD_EVENT.validate_python(json.loads(line)) for line in lines]
    iterations = [event for event in events if isinstance(event, IterationEvent)]
    return RecordedRun(
        run, iterations, [event.name for event in events if isinstance(event, PhaseEvent)]
    )
