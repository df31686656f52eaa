"""Request outcomes and loads with known times."""

from array import array

from wattline_workloads.jobs.llm_load.generator import LoadGenerator
from wattline_workloads.jobs.llm_load.stream import RequestFailure, RequestOutcome, TokenUsage


def success(*, due_s=0.0, first_s=1.0, ended_s=3.0, tokens=5, gaps_s=(0.5, 0.5, 0.5, 0.5)):
    usage = None if tokens is None else TokenUsage(7, tokens)
    return RequestOutcome(due_s, due_s, ended_s, first_s, array("d", gaps_s), usage)


def failure(kind="timeout", due_s=0.0, ended_s=2.0, message="too slow"):
    return RequestOutcome(due_s, due_s, ended_s, failure=RequestFailure(kind, message))


def load_of(*answers, begun_s=0.0):
    load = LoadGenerator(_unused, lambda _: None)
    load.begun_s, load.sent = begun_s, len(answers)
    for answer in answers:
        load.add(answer)
    return load


async def _unused(_request, _due_s):
    raise AssertionError
