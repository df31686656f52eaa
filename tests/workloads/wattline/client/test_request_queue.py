"""Queue of served requests, against a run API that is busy or away."""

import pytest

from tests.fakes.run_api import ProblemError
from wattline.client.api import Api
from wattline.client.request_queue import MAX_BATCH, RequestQueue


def request(name):
    return {"id": name, "started_at": 1, "ended_at": 2, "prompt_tokens": 1, "generated_tokens": 1}


@pytest.fixture
def run_path(exporter):
    api = Api(exporter.address)
    api.post("/runs", {"workload": "serve", "run_id": "r"})
    return api


def test_queue_busy_exporter_is_asked_again_after_its_delay(exporter, run_path):
    exporter.api.busy = [ProblemError(429, "busy", "0"), ProblemError(503, "busy", "0")]
    queue = RequestQueue(run_path, "r")
    for number in range(MAX_BATCH + 1):
        queue.add(request(f"q-{number}"))
    queue.close()

    assert (len(exporter.api.served), queue.dropped) == (MAX_BATCH + 1, 0)


def test_queue_posts_a_batch_as_an_array_for_each_field(exporter, run_path):
    queue = RequestQueue(run_path, "r")
    user, other = {"user": "ann"}, {"user": "bob"}
    with queue._posting:  # the thread waits until all are added
        for name, more in (
            ("a", {"labels": user, "cached_tokens": 3}),
            ("b", {"labels": other}),
            ("c", {"labels": user}),
        ):
            queue.add({**request(name), **more})
    queue.close()

    [body] = exporter.api.bodies("/requests")
    assert body["requests"]["id"] == ["a", "b", "c"]
    assert body["requests"]["labels"] == [user, other]
    assert body["requests"]["label_set"] == [0, 1, 0]
    assert body["requests"]["cached_tokens"] == [3, 0, 0]
    assert body["requests"]["first_token_at"] == [None] * 3


def test_queue_waits_for_retry_after_and_drops_at_the_end(exporter, run_path):
    exporter.api.busy = [ProblemError(429, "busy", "60")] * 3
    queue = RequestQueue(run_path, "r")
    queue.add(request("q"))
    queue.close()

    assert (exporter.api.served, queue.dropped) == ({}, 1)
    assert len(exporter.api.bodies("/requests")) <= 2


def test_queue_full_counts_the_rest(exporter, run_path):
    exporter.api.busy = [ProblemError(429, "busy", "60")] * 9
    queue = RequestQueue(run_path, "r", max_queued=3)
    for number in range(5):
        queue.add(request(f"q-{number}"))

    assert queue.dropped == 2
    queue.close()
    assert queue.dropped == 5


def test_queue_exporter_without_requests_drops_with_one_message(exporter, run_path, capfd):
    queue = RequestQueue(run_path, "unknown")
    for number in range(3):
        queue.add(request(f"q-{number}"))
    queue.close()

    assert queue.dropped == 3
    assert capfd.readouterr().err.count("cannot report requests") == 1


def test_queue_finds_an_invalid_request_of_a_batch_in_few_posts(exporter, run_path):
    queue = RequestQueue(run_path, "r")
    with queue._posting:  # the thread waits until all are added
        for number in range(400):
            queue.add(request(f"q-{number}") | {"generated_tokens": -1 if number == 150 else 1})
    queue.close()

    assert exporter.api.served.keys() == {f"q-{number}" for number in range(400) if number != 150}
    assert queue.dropped == 1
    assert len(exporter.api.bodies("/requests")) <= 25  # one by one, they would be 401
