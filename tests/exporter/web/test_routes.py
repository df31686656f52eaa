"""Routes of the run API, health and landing page."""

import json
import socket
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from urllib.parse import urlsplit

import pytest
import requests

from tests.daemon import begin, daemon, end
from tests.exporter.api import assert_problem
from wattline.contract.history import STATE_FILE


def test_post_with_other_content_type_is_rejected(exporter):
    answer = requests.post(f"{exporter.url}/api/v1/runs", data="workload=x", timeout=30)

    assert answer.status_code == 415
    assert answer.headers["Content-Type"].startswith("application/problem+json")
    assert "application/json" in answer.json()["detail"]


@pytest.mark.parametrize(
    "payload",
    [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"\x16\x03\x01\x02\r\n\r\n"],
)
def test_malformed_http_gets_a_problem_document(exporter, payload):
    address = urlsplit(exporter.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(payload)
        with connection.makefile("rb") as answer:
            head, _, body = answer.read().partition(b"\r\n\r\n")

    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    assert b"Content-Type: application/problem+json" in head
    assert set(json.loads(body)) == {"type", "title", "status", "detail"}


@pytest.mark.parametrize("text", ["{", "\xff\xfe", "nope", '{"workload": "a"} x', "[" * 10_000])
def test_begin_invalid_json_is_rejected(exporter, text):
    answer = requests.post(
        f"{exporter.url}/api/v1/runs",
        data=text.encode("latin-1"),
        headers={"Content-Type": "application/json"},
        timeout=30,
    )

    assert (answer.status_code, answer.json()["status"]) == (400, 400)
    assert "JSON" in answer.json()["detail"]


def test_begin_too_large_body_is_rejected(exporter):
    assert_problem(exporter.post("/api/v1/runs", {"workload": "x" * 300_000}), 413, "262144")


@pytest.mark.parametrize("verb", ["end", "work", "phase", "processes"])
def test_run_change_unknown_run_is_not_found(exporter, verb):
    body = {"name": "x"} if verb == "phase" else {}
    assert_problem(
        exporter.post(f"/api/v1/runs/none-such/{verb}", body), 404, "run_id", "none-such"
    )


def test_routes_unknown_path_method_or_query_is_rejected(exporter):
    assert_problem(exporter.get("/api/v1/runs/none-such"), 404, "none-such")
    assert_problem(exporter.get("/nowhere"), 404, "/nowhere")
    assert_problem(exporter.post("/metrics"), 405, "GET")
    assert_problem(exporter.get("/api/v1/runs?state=paused"), 400, "state", "running")
    assert_problem(exporter.get("/api/v1/runs?before=none-such"), 404, "none-such")
    assert_problem(exporter.post("/v1/traces"), 404, "start the exporter with --otlp.traces")


def test_runs_route_filters_by_state_newest_first(start):
    with start() as exporter:
        for name in ("a", "b", "c"):
            begin(exporter, run_id=name)
        end(exporter, "b")

        def listed(query):
            return [run["run_id"] for run in exporter.get(f"/api/v1/runs{query}")[1]]

        assert listed("") == ["c", "b", "a"]
        assert listed("?state=running") == ["c", "a"]
        assert listed("?state=ended") == ["b"]
        assert listed("?limit=2") == ["c", "b"]
        assert listed("?state=running&limit=1") == ["c"]
        assert listed("?limit=2&before=c") == ["b", "a"]
        assert listed("?state=running&before=c") == ["a"]
        assert listed("?before=a") == []
        assert exporter.get("/api/v1/runs?state=ended")[1] == [exporter.get("/api/v1/runs/b")[1]]


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "1.5", "many", "", "\u0664", "9" * 5_000])
def test_runs_route_limit_outside_1_to_1000_is_rejected(exporter, limit):
    answer = requests.get(f"{exporter.url}/api/v1/runs", params={"limit": limit}, timeout=30)

    assert_problem((answer.status_code, answer.json()), 400, "limit", "1000")


def test_runs_route_long_list_does_not_block_other_requests(tmp_path):
    options = ("--simulate", "8xH200", "--no-collector.rapl", "--no-collector.host", "--no-history")
    with daemon(tmp_path, *options) as exporter:
        begin(exporter, run_id="run-0")
        run = end(exporter, "run-0") | {"started_at": 1e9, "ended_at": 1e9}
        folder = exporter.folder
    with closing(sqlite3.connect(folder / STATE_FILE)) as state, state:
        rows = [
            (f"run-{n}", 1e9, 0, 1, "", json.dumps(run | {"run_id": f"run-{n}"}))
            for n in range(1, 1_001)
        ]
        state.executemany("INSERT INTO run VALUES (?, ?, ?, ?, ?, ?)", rows)
    with daemon(tmp_path, *options) as exporter, ThreadPoolExecutor(1) as pool:
        response_times_s = [time.monotonic()]
        listed = pool.submit(exporter.get, "/api/v1/runs")
        while not listed.done():
            assert exporter.get("/-/healthy")[0] == 200
            response_times_s.append(time.monotonic())
        runs = listed.result()[1]

    assert [len(runs), runs[0]["run_id"]] == [1_000, "run-0"]
    assert max(later - earlier for earlier, later in pairwise(response_times_s)) < 0.7 * (
        response_times_s[-1] - response_times_s[0]
    )


def test_health_readiness_and_landing_page_are_served(exporter):
    assert exporter.get("/-/healthy")[0] == exporter.get("/-/ready")[0] == 200
    status, page = exporter.get("/")
    assert status == 200
    assert "SIMULATED NVIDIA H200" in page
    for route in (
        "/metrics",
        "/api/v1/runs/RUN_ID/requests",
        "/api/v1/requests/REQUEST_ID",
        "/v1/traces",
    ):
        assert route in page


def test_every_answer_of_the_run_api_is_a_run_of_the_contract(exporter):
    from wattline.contract.run import Run

    run = begin(exporter)
    answer = end(exporter, run["run_id"])

    assert Run.parse(answer).to_json() == answer
