"""Values of a RAPL batch by device, and an adjustable clock."""

from __future__ import annotations

from wattline_exporter.sensors.readings import Batch


def joules(batch: Batch) -> dict[tuple[str, str], float | None]:
    return {(poll.device.kind, poll.device.id): poll.counter_j for poll in batch.polls}


def packages(batch: Batch) -> dict[str, float | None]:
    return {poll.device.id: poll.counter_j for poll in batch.polls if poll.device.kind == "package"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s
