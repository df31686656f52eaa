"""CPU energy in the output of `exporter check`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from wattline_exporter.sensors.cpu.methods import CpuSource
from wattline_exporter.sensors.readings import Poll, SourceError
from wattline_exporter.sensors.registry import CheckLine

CPU_COUNTER_S = 0.3
"""Time in which the energy counter of a working zone moves."""


def cpu_lines(source: CpuSource) -> list[CheckLine]:
    """Return the method that reads CPU energy, and one line for each unavailable better one; one
    line if none works.
    """
    try:
        batch = source.read()
    except SourceError as error:
        return [
            CheckLine(
                f"rapl    off: {error}; or estimate CPU energy with --cpu.power-model idle=W,max=W"
            )
        ]
    assert source.method  # set by a successful read
    refused = [
        CheckLine(f"rapl    {name} unavailable: {error}") for name, error in source.refused.items()
    ]
    if not batch.polls:  # the first read of a model
        return [
            *refused,
            *(CheckLine(f"rapl    estimates: {problem}") for problem in batch.problems),
        ]
    still = _still_zones(source, batch.polls)
    zones = ", ".join(_zone(poll) for poll in batch.polls if _zone(poll) not in still)
    works = CheckLine(f"rapl    works: {zones}, by {source.method.name}", measures=True)
    problems = [
        *batch.problems,
        *(f"the counter of {zone} does not move; its energy is not measured" for zone in still),
    ]
    return [works, *refused, *(CheckLine(f"rapl    in part: {problem}") for problem in problems)]


def _still_zones(source: CpuSource, before: Sequence[Poll]) -> list[str]:
    """Return the zones whose energy counter does not move within CPU_COUNTER_S while that of
    another zone does.
    """
    time.sleep(CPU_COUNTER_S)
    try:
        after = {poll.device: poll.counter_j for poll in source.read().polls}
    except SourceError:
        return []
    still = [
        poll
        for poll in before
        if poll.counter_j is not None and after.get(poll.device) == poll.counter_j
    ]
    return [_zone(poll) for poll in still] if len(still) < len(before) else []


def _zone(poll: Poll) -> str:
    return f"{poll.device.kind} {poll.device.id}"
