"""Recorded events of the only run in a folder."""

from wattline.contract.run_files import IterationEvent, parse_event


def read_events(folder):
    """Return the events of the only run in the folder."""
    (path,) = folder.glob("*/events.jsonl")
    return [parse_event(line) for line in path.read_text().splitlines()]


def kernel_events(folder):
    return [event for event in read_events(folder) if isinstance(event, IterationEvent)]
