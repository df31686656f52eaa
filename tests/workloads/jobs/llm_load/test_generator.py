"""Open and closed loops: schedule, concurrency and end."""

import asyncio
import itertools
import time

import pytest

from tests.workloads.jobs.llm_load.outcomes import failure, load_of, success
from wattline_workloads.jobs.llm_load import generator, measure, summary
from wattline_workloads.jobs.llm_load import generator as progress
from wattline_workloads.jobs.llm_load.generator import LoadGenerator, Prompt, StopCondition
from wattline_workloads.jobs.llm_load.stream import RequestOutcome


def first(iterator, count):
    return list(itertools.islice(iterator, count))


REQUESTS = [generator.Request(Prompt(str(number)), 1) for number in range(1_000)]


class Server:
    """Server that answers each request after `takes_s` and records its concurrency."""

    def __init__(self, latency_s=0.0):
        self.latency_s = latency_s
        self.requests = []
        self.received = asyncio.Semaphore(0)
        self.in_flight = self.max_in_flight = 0

    async def send(self, request, due_s):
        sent_s = time.monotonic()
        self.requests.append((request.prompt.text, due_s, sent_s))
        self.in_flight += 1
        self.received.release()
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await asyncio.sleep(self.latency_s)
        finally:
            self.in_flight -= 1
        ended_s = time.monotonic()
        return RequestOutcome(sent_s if due_s is None else due_s, sent_s, ended_s, ended_s)


def test_closed_loop_keeps_concurrency():
    server, reported = Server(latency_s=0.01), []
    load = LoadGenerator(server.send, reported.append)
    asyncio.run(load.closed(iter(REQUESTS), 7, StopCondition(50)))

    assert [text for text, *_ in server.requests] == [str(number) for number in range(50)]
    assert server.max_in_flight == 7
    assert (load.sent, load.answers, load.in_flight) == (50, reported, 0)


def test_closed_loop_duration_awaits_open_requests():
    server = Server(latency_s=0.2)
    load = LoadGenerator(server.send, lambda _: None)
    asyncio.run(load.closed(iter(REQUESTS), 2, StopCondition(None, 0.3)))

    assert len(load.answers) == load.sent == len(server.requests)
    assert 2 <= load.sent < len(REQUESTS)
    assert load.window_s >= 0.2


def test_open_loop_slow_answers_keep_schedule():
    server = Server(latency_s=1.0)
    load = LoadGenerator(server.send, lambda _: None)
    asyncio.run(
        load.open(iter(REQUESTS), measure.arrival_offsets_s("fixed", 100, 0), StopCondition(20))
    )

    assert [due_s - load.begun_s for _, due_s, _ in server.requests] == pytest.approx(
        [n / 100 for n in range(20)]
    )
    assert all(sent_s >= due_s - 1e-6 for _, due_s, sent_s in server.requests)
    assert server.max_in_flight > 1
    assert len(load.answers) == 20


def test_open_loop_duration_limits_requests():
    server = Server()
    load = LoadGenerator(server.send, lambda _: None)
    asyncio.run(
        load.open(
            iter(REQUESTS), measure.arrival_offsets_s("fixed", 10, 0), StopCondition(None, 0.35)
        )
    )

    assert len(server.requests) == 4  # at 0, 0.1, 0.2 and 0.3 s


def test_closed_loop_cancelled_counts_open_requests():
    async def cancelled():
        server = Server(latency_s=60)
        load = LoadGenerator(server.send, lambda _: None)
        task = asyncio.create_task(load.closed(iter(REQUESTS), 3, StopCondition(10)))
        for _ in range(3):
            await server.received.acquire()
        task.cancel()
        await asyncio.wait([task])
        return load

    load = asyncio.run(cancelled())

    assert (load.sent, load.cancelled, load.in_flight, load.answers) == (3, 3, 0, [])
    assert load.window_s > 0
    assert summary.load_results(load, None) == {"requests_failed": 0, "requests_cancelled": 3}


def test_load_progress_line_has_counts_and_rate():
    load = load_of(success(tokens=30), failure())
    load.sent = 5

    assert (
        progress.load_progress_line(load, now_s=10)
        == "10 s, 1 answered, 1 failed, 3 in flight, 3 tokens/s"
    )


def test_load_progress_without_terminal_is_log_lines(capsys):
    lines = []

    async def collect_lines():
        async with progress.show_load_progress(load_of(success()), "measure", every_s=0.02):
            while len(lines) < 2:
                await asyncio.sleep(0.01)
                lines.extend(capsys.readouterr().err.splitlines(keepends=True))

    asyncio.run(asyncio.wait_for(collect_lines(), 60))

    assert all(
        line.startswith("wattline: measure: ") and line.endswith("tokens/s\n") for line in lines
    )
    assert "\r" not in "".join(lines)
