"""Thousands of malformed and hostile requests: no 5xx, no traceback, no growth, unchanged runs.

Some come from the OpenAPI document (schemathesis, values that fit and values that do not), the rest
are bytes on a socket.
"""

import asyncio
import json
import random
import signal
from collections import Counter
from contextlib import suppress
from urllib.parse import urlsplit

import psutil
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.daemon import begin, daemon, end
from tests.exporter.web.hostile_requests import hostile_request
from tests.polling import eventually
from wattline.contract.run import RunJson
from wattline_exporter.meter.totals import KEPT_S

SCHEMA_REQUESTS = 256
REQUESTS_PER_ROUND = 500
ROUNDS = 10
WARM_UP_ROUNDS = 4
MAX_GROWTH_BYTES_PER_REQUEST = 1_600
MAX_OBJECTS_PER_REQUEST = 1
SEED = 20_261_120
CONCURRENT_REQUESTS = 100
RESPONSE_TIMEOUT_S = 0.25
PROGRAM = """
import gc, os, runpy, signal, sys

def write_object_count(*_):
    gc.collect()
    with open(os.environ["OBJECT_COUNT_FILE"] + ".new", "w") as file:
        file.write(str(sys.getallocatedblocks()))
    os.rename(file.name, os.environ["OBJECT_COUNT_FILE"])

signal.signal(signal.SIGUSR1, write_object_count)
runpy.run_module("wattline_exporter", run_name="__main__", alter_sys=True)
"""


async def response_to(address, request):
    """Return the response, empty if the exporter waits for the rest of an incomplete request."""
    received = b""
    reader, writer = await asyncio.open_connection(*address)
    with suppress(ConnectionError, TimeoutError):
        writer.write(request)
        async with asyncio.timeout(RESPONSE_TIMEOUT_S):
            while part := await reader.read(65536):
                received += part
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return received


async def send_all(address, payloads):
    """Return the number of responses by status."""
    counts = Counter()
    slots = asyncio.Semaphore(CONCURRENT_REQUESTS)

    async def send(payload):
        async with slots:
            received = await response_to(address, payload)
            while b"503 Service Unavailable" in received and b"Retry-After: 1" in received:
                await asyncio.sleep(0.2)  # on a slow host closing connections may reach the limit
                received = await response_to(address, payload)
            for status in statuses(received):
                assert status < 500, (payload[:500], received[-500:])
                counts[status] += 1

    await asyncio.gather(*map(send, payloads))
    return counts


def statuses(received):
    """Return the status of each response; bytes may be parsed as several requests."""
    starts = received.split(b"HTTP/1.")[1:]
    return [int(each[2:5]) for each in starts if each[:1] in b"01" and each[2:5].isdigit()]


def private_bytes(process):
    """Return the private memory; shared memory depends on other processes."""
    return psutil.Process(process.pid).memory_full_info().uss


class ObjectCounter:
    """Number of live memory blocks of the exporter's Python heap, written by PROGRAM on SIGUSR1."""

    def __init__(self, folder):
        self._file = folder / "object-count"
        self.env = {"OBJECT_COUNT_FILE": str(self._file)}

    def count(self, process):
        self._file.unlink(missing_ok=True)
        process.send_signal(signal.SIGUSR1)
        eventually(self._file.exists, "an object count")
        return int(self._file.read_text())


@pytest.fixture
def object_counter(tmp_path):
    return ObjectCounter(tmp_path)


@pytest.fixture
def node(tmp_path, object_counter):
    """Yield an exporter with one open and one ended run, both unchanged in the end."""
    options = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
    with daemon(
        tmp_path, *options, program=("-c", PROGRAM), env=object_counter.env, nursery=None
    ) as exporter:  # without memory shared with a parent
        begin(exporter, run_id="kept", labels={"model": "tiny"})
        exporter.post("/api/v1/runs/kept/work", {"generated_tokens": 5})
        begin(exporter, run_id="ended")
        before = end(exporter, "ended")
        yield exporter
        assert exporter.get("/api/v1/runs/ended") == (200, before)
        run = end(exporter, "kept")
        assert (run["state"], run["labels"], run["workload"]) == (
            "ended",
            {"model": "tiny"},
            "test",
        )
        assert run["work"]["generated_tokens"] >= 5
        assert (
            exporter.value(
                "wattline_run_energy_joules_total", run_id="kept", device=run["gpus"][0]["uuid"]
            )
            > 0
        )
        assert "Traceback" not in exporter.log()
        assert "level=error" not in exporter.log()


def run_age_s(exporter):
    return exporter.get("/api/v1/runs/kept")[1]["duration_seconds"]


@pytest.mark.timeout(400)
def test_server_hostile_requests_leave_no_trace(node, object_counter):
    """Check memory and live objects, because fragmentation alone adds up to 25 MB of private
    memory.

    Fragmentation grows in steps, mostly within the first 10,000 requests. A leak grows in each
    round of requests.
    """
    random_source = random.Random(SEED)
    parts = urlsplit(node.url)
    address = (parts.hostname, parts.port)
    received_statuses, growth_bytes = set(), []
    for number in range(ROUNDS):
        if number == WARM_UP_ROUNDS:
            eventually(
                lambda: run_age_s(node) > KEPT_S + 1,
                "the meters keep as many polls as ever",
                node.log,
            )
            objects_before = object_counter.count(node.process)
        before = private_bytes(node.process)
        payloads = [hostile_request(random_source) for _ in range(REQUESTS_PER_ROUND)]
        received_statuses |= set(asyncio.run(send_all(address, payloads)))
        growth_bytes.append(private_bytes(node.process) - before)
    measured_requests = (ROUNDS - WARM_UP_ROUNDS) * REQUESTS_PER_ROUND
    max_objects = objects_before + MAX_OBJECTS_PER_REQUEST * measured_requests

    assert {200, 400, 404, 405, 413, 415, 421, 422} <= received_statuses
    assert min(growth_bytes[WARM_UP_ROUNDS:]) < MAX_GROWTH_BYTES_PER_REQUEST * REQUESTS_PER_ROUND, (
        growth_bytes
    )
    eventually(
        lambda: psutil.Process(node.process.pid).num_fds() < 100,
        "its connections are closed",
        node.log,
    )
    eventually(
        lambda: object_counter.count(node.process) < max_objects,
        "no live objects of requests",
        node.log,
    )
    assert node.get("/metrics")[0] == 200


def cases(exporter):
    """Yield each operation with valid and with invalid values."""
    document = requests.get(f"{exporter.url}/api/v1/openapi.json", timeout=30).json()
    schema = schemathesis.openapi.from_dict(document)
    for operation in (result.ok() for result in schema.get_all_operations()):
        has_input = any([operation.body, operation.query, operation.path_parameters])
        for mode in (GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if has_input else [])):
            yield operation, mode


@pytest.mark.timeout(400)
def test_server_generated_requests_follow_the_openapi_document(node):
    sent = 0
    session = requests.Session()
    examples = SCHEMA_REQUESTS // 16
    for operation, mode in cases(node):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case):
            nonlocal sent
            sent += 1
            response = case.call(base_url=node.url, session=session, timeout=30)
            case.validate_response(
                response, checks=[not_a_server_error, response_schema_conformance]
            )

        send()
    assert sent >= SCHEMA_REQUESTS * 0.9


def test_openapi_document_run_has_the_contract_fields(node):
    document = node.get("/api/v1/openapi.json")[1]
    schema = document["components"]["schemas"]["Run"]

    assert set(schema["properties"]) == set(RunJson.__annotations__)
    assert document["paths"]["/api/v1/runs/{run_id}/end"]["post"]["requestBody"]["required"]
    assert set(json.dumps(document).split('"$ref": "')[1:]) != set()
