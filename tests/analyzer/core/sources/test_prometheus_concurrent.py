"""Simultaneous requests to a server of samples, counted by the server."""

import json
import threading

import pytest

from tests.analyzer.loopback import Reply, error_reply, history_api, http_server
from tests.analyzer.node import START_S
from wattline.contract import metrics as m
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.http import CONNECTIONS
from wattline_analyzer.core.sources.prometheus import PrometheusSource

EMPTY = Reply(
    200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}).encode()
)


@pytest.fixture
def client():
    opened = []

    def connect(address):
        opened.append(PrometheusSource(address, timeout_s=20.0))
        return opened[-1]

    yield connect
    for source in opened:
        source.close()


def counted(respond, *, at_once):
    """Return a responder that holds all requests until `at_once` are open, and the greatest number
    of open requests.

    Without so many requests at the same time it answers with HTTP 500.
    """
    together, lock, numbers = threading.Barrier(at_once), threading.Lock(), {"open": 0, "most": 0}

    def answer(path, parameters):
        with lock:
            numbers["open"] += 1
            numbers["most"] = max(numbers["most"], numbers["open"])
        try:
            together.wait(timeout=10)
        except threading.BrokenBarrierError:
            return error_reply(500, "internal", f"less than {at_once} requests at the same time")
        finally:
            with lock:
                numbers["open"] -= 1
        return respond(path, parameters)

    return answer, numbers


def test_prefetch_requests_all_at_once_within_limit(steady_history, client):
    answer, numbers = counted(history_api(steady_history), at_once=CONNECTIONS)
    spans = [(START_S, START_S + 1 + number) for number in range(2 * CONNECTIONS)]
    with http_server(answer) as (address, requests):
        source = client(f"http://{address}")
        for span in spans:
            source.prefetch([m.GPU_POWER], {}, *span)
        frames = [source.fetch([m.GPU_POWER], {}, *span) for span in spans]

    assert numbers["most"] == CONNECTIONS
    assert [len(frame) for frame in frames] == [
        2 * (1 + number) for number in range(16)
    ]  # two GPUs, each second
    assert len(requests.paths) == 16  # each once


def test_prefetch_error_is_raised_by_fetch(client):
    with http_server(lambda _path, _parameters: error_reply(422, "execution", "query failed")) as (
        address,
        requests,
    ):
        source = client(f"http://{address}")
        source.prefetch([m.GPU_POWER], {}, START_S, START_S + 20)
        with pytest.raises(
            FetchError, match=r"refused the query: query failed; check the server's log"
        ):
            source.fetch([m.GPU_POWER], {}, START_S, START_S + 20)

    assert len(requests.paths) == 1


def test_fetch_empty_month_requests_chunks_at_once(client):
    answer, numbers = counted(lambda _path, _parameters: EMPTY, at_once=CONNECTIONS)
    long_s = (6 + 24 + 15 * 48) * 3_600 - 1  # the first chunk, then two times eight chunks at once

    def first_alone(path, parameters):
        first = float(parameters["time"]) == START_S + 6 * 3_600 - 0.001
        return EMPTY if first else answer(path, parameters)

    with http_server(first_alone) as (address, requests):
        frame = client(f"http://{address}").fetch([m.GPU_POWER], {}, START_S, START_S + long_s)

    assert len(frame) == 0
    assert numbers["most"] == CONNECTIONS
    assert len(requests.paths) == 17


def test_load_run_requests_all_samples_of_node_at_once(steady_history, client):
    stored = history_api(steady_history)
    held, numbers = counted(
        stored, at_once=7
    )  # states, limit, power, energy, utilization, CPU power, other runs

    def by_kind(path, parameters):
        return (stored if "run_id" in parameters["query"] else held)(path, parameters)

    clock = Clock(lambda: START_S + 86_400, pytest.fail)
    with http_server(by_kind) as (address, requests):
        frames = load_run(client(f"http://{address}"), "train-1", 3_600 * 29, clock, pytest.fail)

    assert numbers["most"] == 7
    assert frames.run.ended_at == START_S + 20
    assert (
        len(requests.paths) == 11
    )  # and two chunks of the search, two requests for the run's own series
