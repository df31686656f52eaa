"""Thousands of malformed and hostile requests: no 5xx, no traceback, no growth, unchanged runs.

Some come from the OpenAPI document (schemathesis, values that fit and values that do not), the rest are bytes on a
socket: broken HTTP, hostile JSON, hostile queries.
"""

import asyncio
import json
import random
from collections import Counter
from contextlib import suppress
from urllib.parse import quote, urlsplit

import psutil
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from exporter.contract.run import RunView
from tests.daemon import begin, daemon, end, eventually

BY_SCHEMA = 256
BY_HAND = 4_000
MOST_GROWTH = 5 * 1024 * 1024
SEED = 20_261_120
AT_A_TIME = 100
WAIT_S = 0.25

METHODS = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "get", "G\x00T", "PRI", "CONNECT", "", "A" * 400]
PATHS = [
    "/",
    "/metrics",
    "/api/v1/runs",
    "/api/v1/runs/kept/work",
    "/api/v1/runs/%00/end",
    "/api/v1/runs/..%2f..%2fetc/phase",
    "/api/v1/runs?state=running&state=ended",
    "/api/v1/runs?state=%ff",
    "//metrics",
    "/metrics/../api/v1/query",
    "http://evil.example/metrics",
    "*",
    "\xff\xfe",
    "/" + "a" * 9_000,
    "/-/ready;x",
    "/api/v1/query?" + "a=b&" * 900,
]
VERSIONS = ["HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/9.9", "http/1.1", "", "HTTP/1.1 x"]
HEADERS = [
    "Host: localhost",
    "Host: localhost",
    "Host: evil.example",
    "Host: [",
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999999999999999",
    "Content-Length: 1e3",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Content-Encoding: gzip",
    "Content-Type: application/json",
    "Content-Type: application/json; charset=utf-7",
    "Content-Type: multipart/form-data; boundary=x",
    "Expect: 100-continue",
    "Expect: the-worst",
    "Upgrade: websocket",
    "Connection: Upgrade, close",
    "Authorization: Basic \xff\xfe",
    "Authorization: Bearer " + "x" * 500,
    "Accept: application/openmetrics-text;version=9.9.9;q=x",
    "Accept-Encoding: gzip;q=nan",
    "Cookie: " + "a=b;" * 200,
    "no colon at all",
    " folded: header",
    "X-\x00: y",
    "X: " + "a" * 9_000,
    "Range: bytes=0-,5-1,-",
    "If-None-Match: *",
]
BODIES = [
    b"",
    b"{",
    b"[" * 5_000,
    b'{"workload":' * 1_000,
    b'{"workload": "a\\ud800"}',
    b'{"workload": "\\u0000\\u001b[2J"}',
    b'{"workload": 1e999}',
    b'{"workload": "x", "lease_seconds": NaN}',
    b'{"workload": "x", "pids": [99999999999999999999999]}',
    b'{"workload": "x", "labels": {"__name__": "up", "run_id": "forged"}, "gpus": ["../../etc"]}',
    b'{"workload": "x", "cgroup": "/../../../../etc/passwd"}',
    b'{"workload": "x", "run_id": "../../x"}',
    b'{"contributor": "' + b"x" * 200 + b'", "tokens": 1e308}',
    b'{"generated_tokens": -0.0, "contributor": "a"}',
    b"\xff\xfe\x00",
    b"null",
    b'{"a": "' + b"y" * 300_000 + b'"}',
    b'5\r\n{"a":\r\nZZ\r\n',
    b"FFFFFFFFFFFFFFFF\r\n",
]
QUERIES = [
    "up",
    "{}[1s]",
    '{a=~"(a+)+$"}[5m]',
    '{__name__=~"(.*)*(.*)*(.*)*x"}[30d]',
    '{a=~"' + "(" * 500 + '"}[1s]',
    '{a=~"a{9999999999}"}[1s]',
    '{a=~"(a{1000}){1000}"}[1s]',
    '{a=~"\\\\"}[1s]',
    '{__name__!=""}[99999999999999999999999999999d]',
    "wattline_build_info[1s",
    '{a="\udcff"}[1s]',
    '{a="\0"}[1s]',
    'wattline_gpu_power_watts{gpu!~"[^0-9]|"}[1m]',
    "sum(rate(x[5m]))",
    "x' OR 1=1 --[1s]",
    '{a="' + '\\"' * 900 + '"}[1s]',
]
TIMES = ["", "&time=1e308", "&time=nan", "&time=-1e300", "&time=9" * 1, "&time=0x10", "&time=1_0"]


def hostile(chance):
    """Return random bytes that may be a request."""
    kind = chance.random()
    if kind < 0.05:
        return chance.randbytes(chance.randrange(1, 300))
    if kind < 0.3:
        query = quote(chance.choice(QUERIES), errors="surrogateescape", safe="")
        line, body = f"GET /api/v1/query?query={query}{chance.choice(TIMES)} HTTP/1.1", b""
        lines = [line, "Host: localhost"]
    elif kind < 0.6:
        body = chance.choice(BODIES)
        step = chance.choice(["", "/kept/work", "/kept/phase", "/kept/processes", "/none/end"])
        lines = [f"POST /api/v1/runs{step} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines.append(f"Content-Length: {len(body) + chance.choice([0, 0, 0, 0, -1])}")
    else:
        first = " ".join([chance.choice(METHODS), chance.choice(PATHS), chance.choice(VERSIONS)])
        body = chance.choice(BODIES) if chance.random() < 0.3 else b""
        lines = [first, *chance.choices(HEADERS, k=chance.randrange(6))]
    ending = chance.choice(["\r\n", "\r\n", "\r\n", "\r\n", "\n"])
    if chance.random() < 0.8:
        lines.append("Connection: close")
    whole = (ending.join(lines) + ending * 2).encode("latin-1", "replace") + body
    if chance.random() < 0.1 and len(whole) > 2:
        spot = chance.randrange(len(whole))
        whole = whole[:spot] + chance.randbytes(chance.randrange(3)) + whole[spot + chance.randrange(3) :]
    return whole


async def answered(address, whole):
    """Return the response, empty if the exporter waits for the rest of an incomplete request."""
    received = b""
    reader, writer = await asyncio.open_connection(*address)
    with suppress(ConnectionError, TimeoutError):
        writer.write(whole)
        async with asyncio.timeout(WAIT_S):
            while part := await reader.read(65536):
                received += part
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return received


async def ask_all(address, wholes):
    """Return the number of responses by status."""
    seen = Counter()
    room = asyncio.Semaphore(AT_A_TIME)

    async def ask(whole):
        async with room:
            received = await answered(address, whole)
            while b"503 Service Unavailable" in received and b"Retry-After: 1" in received:
                await asyncio.sleep(0.2)  # on a slow host closing connections may reach the limit
                received = await answered(address, whole)
            for status in statuses(received):
                assert status < 500, (whole[:500], received[-500:])
                seen[status] += 1

    await asyncio.gather(*map(ask, wholes))
    return seen


def statuses(received):
    """Return the status of each response; bytes may be parsed as several requests."""
    starts = received.split(b"HTTP/1.")[1:]
    return [int(each[2:5]) for each in starts if each[:1] in b"01" and each[2:5].isdigit()]


def memory(process):
    return (
        psutil.Process(process.pid).memory_full_info().uss
    )  # private memory; shared memory depends on other processes


@pytest.fixture
def kept(tmp_path):
    """An exporter with one open and one ended run."""
    options = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
    with daemon(tmp_path, *options, nursery=None) as exporter:  # without memory shared with a parent
        begin(exporter, run_id="kept", labels={"model": "tiny"})
        exporter.post("/api/v1/runs/kept/work", {"generated_tokens": 5})
        begin(exporter, run_id="ended")
        before = end(exporter, "ended")
        yield exporter
        assert exporter.get("/api/v1/runs/ended") == (200, before)
        run = end(exporter, "kept")
        assert (run["state"], run["labels"], run["workload"]) == ("ended", {"model": "tiny"}, "test")
        assert run["work"]["generated_tokens"] >= 5
        assert exporter.value("wattline_run_energy_joules_total", run_id="kept", device=run["gpus"][0]["uuid"]) > 0
        assert "Traceback" not in exporter.log()
        assert "level=error" not in exporter.log()


@pytest.mark.timeout(400)
def test_server_hostile_requests_leave_no_trace(kept):
    chance = random.Random(SEED)
    parts = urlsplit(kept.url)
    address = (parts.hostname, parts.port)
    seen, grown = set(), []
    for _ in range(4):  # a leak grows in each round; buffers grow now and then
        before = memory(kept.process)
        seen |= set(asyncio.run(ask_all(address, [hostile(chance) for _ in range(BY_HAND // 4)])))
        grown.append(memory(kept.process) - before)

    assert {200, 400, 404, 405, 413, 415, 421, 422} <= seen
    assert min(grown[1:]) < MOST_GROWTH / 2, grown
    eventually(lambda: psutil.Process(kept.process.pid).num_fds() < 100, "its connections are closed", kept.log)
    assert kept.get("/metrics")[0] == 200


def cases(exporter):
    """Yield each operation with valid and with invalid values."""
    document = requests.get(f"{exporter.url}/api/v1/openapi.json", timeout=30).json()
    schema = schemathesis.openapi.from_dict(document)
    for operation in (found.ok() for found in schema.get_all_operations()):
        takes_something = any([operation.body, operation.query, operation.path_parameters])
        for mode in (GenerationMode.POSITIVE, *([GenerationMode.NEGATIVE] if takes_something else [])):
            yield operation, mode


@pytest.mark.timeout(400)
def test_server_generated_requests_follow_the_openapi_document(kept):
    asked = 0
    session = requests.Session()
    each = BY_SCHEMA // 16
    for operation, mode in cases(kept):

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=each,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def ask(case):
            nonlocal asked
            asked += 1
            answer = case.call(base_url=kept.url, session=session, timeout=30)
            case.validate_response(answer, checks=[not_a_server_error, response_schema_conformance])

        ask()
    assert asked >= BY_SCHEMA * 0.9


def test_openapi_document_run_has_the_contract_fields(kept):
    document = kept.get("/api/v1/openapi.json")[1]
    schema = document["components"]["schemas"]["RunView"]

    assert set(schema["properties"]) == set(RunView.model_fields)
    assert document["paths"]["/api/v1/runs/{run_id}/end"]["post"]["requestBody"]["required"]
    assert set(json.dumps(document).split('"$ref": "')[1:]) != set()
