"""Bodies of traces that the receiver refuses."""

import asyncio
import gzip

import pytest
from google.rpc.status_pb2 import Status

from tests.exporter.requests.otlp.receiver_node import one_span, post
from wattline_exporter.requests.otlp.receiver import MAX_WAITING
from wattline_exporter.sensors.readings import RunError
from wattline_exporter.web.otlp import MAX_DECODED_BYTES, MAX_JSON_BYTES


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"\xff\xff", {}, 400, "ExportTraceServiceRequest"),
        (b"no gzip", {"Content-Encoding": "gzip"}, 400, "not gzip"),
        (gzip.compress(bytes(100), mtime=0)[:-9], {"Content-Encoding": "gzip"}, 400, "incomplete"),
        (2 * gzip.compress(b"", mtime=0), {"Content-Encoding": "gzip"}, 400, "after its end"),
        (b"", {"Content-Encoding": "br"}, 415, "gzip"),
        (
            gzip.compress(bytes(MAX_DECODED_BYTES + 1), mtime=0),
            {"Content-Encoding": "gzip"},
            413,
            "decompressed",
        ),
        (bytes(9_000_000), {}, 413, "exceeds"),
    ],
)
def test_bad_body_is_answered_with_a_status_message(url, body, headers, status, words):
    answer = post(url, body, **headers)

    assert answer.status_code == status
    assert (Status.FromString(answer.content).code, answer.headers["Content-Type"]) == (
        3,
        "application/x-protobuf",
    )
    assert words in Status.FromString(answer.content).message


def test_bad_json_is_answered_with_a_status_in_json(url):
    answer = post(url, b"{", **{"Content-Type": "application/json"})

    assert (answer.status_code, answer.json()["code"]) == (400, 3)


@pytest.mark.parametrize(
    ("spaces", "status"), [(MAX_JSON_BYTES - 2, 200), (MAX_JSON_BYTES - 1, 413)]
)
def test_decompressed_json_is_limited(url, spaces, status):
    body = gzip.compress(b"{" + b" " * spaces + b"}", mtime=0)

    answer = post(url, body, **{"Content-Type": "application/json", "Content-Encoding": "gzip"})

    assert answer.status_code == status


def test_other_content_type_is_a_problem(url):
    answer = post(url, b"x", **{"Content-Type": "text/plain"})

    assert (answer.status_code, answer.headers["Content-Type"]) == (415, "application/problem+json")


async def _fill(node):
    blocked = asyncio.Event()

    async def report(run_id, accepted, inner=node.sink.report_columns):
        await blocked.wait()
        return await inner(run_id, accepted)

    node.sink.report_columns = report
    receiver = node.receiver()
    tasks = [
        asyncio.create_task(receiver.receive(one_span(), is_json=False)) for _ in range(MAX_WAITING)
    ]
    await asyncio.sleep(0)
    try:
        with pytest.raises(RunError, match="waiting") as error:
            await receiver.receive(one_span(), is_json=False)
        return error.value
    finally:
        blocked.set()
        await asyncio.gather(*tasks)


def test_waiting_bodies_are_bounded(node):
    error = asyncio.run(_fill(node))

    assert (error.status, error.retry_after_s) == (429, 1)
