"""Open and closed loops: schedule, concurrency and end."""

import argparse
import asyncio
import itertools
import json
import math
import time

import pytest

from workloads.jobs.llm_load import measure, prompts, summary
from workloads.jobs.llm_load.generator import LoadGenerator, StopCondition
from workloads.jobs.llm_load.outcome import RequestOutcome
from workloads.jobs.llm_load.prompts import Prompt, TokenRange

FIVE = TokenRange(5, 5)


def first(iterator, count):
    return list(itertools.islice(iterator, count))


def test_arrival_offsets_fixed_are_evenly_spaced():
    assert first(measure.arrival_offsets_s("fixed", 4, seed=0), 5) == [0, 0.25, 0.5, 0.75, 1]


def test_arrival_offsets_poisson_are_exponential():
    offsets_s = first(measure.arrival_offsets_s("poisson", 4, seed=1), 20_000)
    gaps_s = [after - before for before, after in itertools.pairwise([0, *offsets_s])]
    mean_s = sum(gaps_s) / len(gaps_s)
    deviation_s = math.sqrt(sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s))

    assert min(gaps_s) >= 0
    assert mean_s == pytest.approx(0.25, rel=0.03)  # the standard error is 0.7 %, and the seed is fixed
    assert deviation_s == pytest.approx(0.25, rel=0.05)  # standard deviation of an exponential distribution is its mean
    assert sum(gap_s > 0.25 for gap_s in gaps_s) / len(gaps_s) == pytest.approx(math.exp(-1), abs=0.02)


def test_load_same_seed_gives_same_requests():
    def load_of(seed):
        offsets_s = first(measure.arrival_offsets_s("poisson", 4, seed), 20)
        return offsets_s, first(prompts.generate_requests(None, TokenRange(1, 50), TokenRange(1, 500), seed), 20)

    assert load_of(3) == load_of(3)
    assert load_of(3)[0] != load_of(4)[0]
    assert load_of(3)[1] != load_of(4)[1]


def test_generate_requests_lengths_are_in_range():
    requests = first(prompts.generate_requests(None, TokenRange(3, 6), TokenRange(10, 12), seed=0), 200)

    assert {len(request.prompt.text.split()) for request in requests} == {3, 4, 5, 6}
    assert {request.max_tokens for request in requests} == {10, 11, 12}
    assert len({request.prompt.text for request in requests}) > 190


@pytest.mark.parametrize(("text", "least", "most"), [("128", 128, 128), ("64:256", 64, 256), ("7:7", 7, 7)])
def test_parse_token_range_accepts_number_or_range(text, least, most):
    assert prompts.parse_token_range(text) == TokenRange(least, most)
    assert str(prompts.parse_token_range(text)) == text.removesuffix(":7")


@pytest.mark.parametrize("text", ["", "0", "5:3", ":", "1:", "many", "1:2:3", "-4", "1.5"])
def test_parse_token_range_invalid_text_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError, match="64:256"):
        prompts.parse_token_range(text)


def test_read_prompts_text_file_repeats_its_lines(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text('one\n\n  two \n{"prompt": "three"}\n')
    requests = first(prompts.generate_requests(prompts.read_prompts(str(path)), FIVE, FIVE, seed=0), 4)

    assert [request.prompt.text for request in requests] == ["one", "  two ", '{"prompt": "three"}', "one"]


def test_read_prompts_jsonl_file_sets_messages_and_lengths(tmp_path):
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "hi"}]
    path.write_text(f'"one"\n{{"prompt": "two", "max_tokens": 9}}\n{json.dumps({"messages": messages})}\n')
    prompt_file = prompts.read_prompts(str(path))
    requests = first(prompts.generate_requests(prompt_file, FIVE, FIVE, seed=0), 3)

    assert [request.prompt for request in requests] == [Prompt("one"), Prompt("two", None, 9), Prompt(None, messages)]
    assert [request.max_tokens for request in requests] == [5, 9, 5]
    assert str(prompt_file) == str(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("plain", "no JSON"),
        ("[1]", "neither a text nor an object"),
        ("{}", "either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "either prompt or messages"),
        ('{"prompt": 3}', "prompt is no text"),
        ('{"messages": []}', "messages are a list"),
        ('{"messages": [{"content": "a"}]}', "messages are a list"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens"),
        ('{"prompt": "a", "temperature": 0}', "'temperature' is not known"),
    ],
)
def test_read_prompts_invalid_line_is_named(tmp_path, line, complaint):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"good"\n{line}\n')

    with pytest.raises(argparse.ArgumentTypeError, match=rf"prompts\.jsonl, line 2: .*{complaint}"):
        prompts.read_prompts(str(path))


def test_read_prompts_missing_or_empty_file_is_rejected(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")

    with pytest.raises(argparse.ArgumentTypeError, match="holds no prompt"):
        prompts.read_prompts(str(tmp_path / "empty.txt"))
    with pytest.raises(argparse.ArgumentTypeError, match="No such file"):
        prompts.read_prompts(str(tmp_path / "gone.txt"))


REQUESTS = [prompts.Request(Prompt(str(number)), 1) for number in range(1_000)]


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
    asyncio.run(load.open(iter(REQUESTS), measure.arrival_offsets_s("fixed", 100, 0), StopCondition(20)))

    assert [due_s - load.begun_s for _, due_s, _ in server.requests] == pytest.approx([n / 100 for n in range(20)])
    assert all(sent_s >= due_s - 1e-6 for _, due_s, sent_s in server.requests)
    assert server.max_in_flight > 1
    assert len(load.answers) == 20


def test_open_loop_duration_limits_requests():
    server = Server()
    load = LoadGenerator(server.send, lambda _: None)
    asyncio.run(load.open(iter(REQUESTS), measure.arrival_offsets_s("fixed", 10, 0), StopCondition(None, 0.35)))

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
