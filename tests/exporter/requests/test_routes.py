"""Reports of requests over HTTP, on a real exporter with simulated GPUs."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from tests.daemon import begin
from tests.exporter.api import assert_problem
from tests.exporter.requests.calls import accepted, report, report_arrays, served
from wattline_exporter.requests.intake import REASONS
from wattline_exporter.web.request_routes import MAX_REPORT_BYTES


@pytest.fixture(scope="module")
def run_id(exporter):
    """Return a run whose first second has passed, so that requests may have begun in it."""
    begin(exporter, "llm-server", run_id="server", gpus=["0"])
    time.sleep(1.1)
    return "server"


def test_requests_are_accepted_once_and_listed(exporter, run_id):
    sent = [served(k, seconds=0.5) for k in range(5)]

    first, again = (
        accepted(exporter, run_id, *sent),
        accepted(exporter, run_id, *sent[2:], served(9, seconds=0.1)),
    )

    assert (first["accepted"], first["duplicate"]) == (5, 0)
    assert (again["accepted"], again["duplicate"]) == (1, 3)
    assert again["reasons"] == {
        "reported before: ids must be unique, and only the first report counts": 3
    }
    notes = exporter.get(f"/api/v1/runs/{run_id}")[1]["notes"]
    assert not any("reported before" in note for note in notes), "a repeat loses nothing"
    status, page = exporter.get(f"/api/v1/runs/{run_id}/requests")
    assert status == 200
    assert page["next"] is None
    for before, stored in zip(sent, page["requests"], strict=False):
        assert stored == {**before, "cached_tokens": 0, "role": None}


@pytest.mark.parametrize("labels", [{"model": "llama"}, {"model": "\\ \u00e9"}])
def test_requests_in_arrays_are_listed_like_those_in_objects(exporter, labels):
    run_id = begin(exporter, "llm-server", gpus=["0"])["run_id"]
    sent = [
        {
            **served(f"a{k}", seconds=0.1, labels={**labels, "user": f"u{k % 2}"}),
            "cached_tokens": k,
            "role": role,
        }
        for k, role in enumerate(("prefill", "decode", None, None))
    ]
    sent[3]["first_token_at"] = None

    status, receipt = report_arrays(exporter, run_id, *sent)

    assert (status, receipt["accepted"]) == (202, 4), receipt
    assert exporter.get(f"/api/v1/runs/{run_id}/requests")[1]["requests"] == sent


def test_requests_in_arrays_without_optional_fields_have_defaults(exporter):
    run_id = begin(exporter, "llm-server", gpus=["0"])["run_id"]
    sent = {
        name: [served("bare", seconds=0.1)[name]]
        for name in ("id", "started_at", "ended_at", "prompt_tokens")
    }

    answer = exporter.post(
        f"/api/v1/runs/{run_id}/requests", {"requests": {**sent, "generated_tokens": [3]}}
    )

    assert answer[1]["accepted"] == 1, answer
    (stored,) = exporter.get(f"/api/v1/runs/{run_id}/requests")[1]["requests"]
    assert (stored["id"], stored["generated_tokens"]) == ("r-bare", 3)
    assert stored["first_token_at"] is stored["role"] is None
    assert (stored["cached_tokens"], stored["labels"]) == (0, {})


def test_arrays_without_requests_are_accepted(exporter, run_id):
    arrays = {
        name: []
        for name in ("id", "started_at", "ended_at", "prompt_tokens", "generated_tokens", "labels")
    }

    status, receipt = exporter.post(f"/api/v1/runs/{run_id}/requests", {"requests": arrays})

    assert (status, receipt["accepted"], receipt["rejected"]) == (202, 0, 0)


@pytest.mark.parametrize("request_id", ["a/b?c#d", "100 %2F", "\u00e9\u4f60"])
def test_request_is_found_by_its_percent_encoded_id(exporter, request_id):
    run_id = begin(exporter, "llm-server", gpus=["0"])["run_id"]
    accepted(exporter, run_id, {**served(1, seconds=0.1), "id": request_id})

    status, view = exporter.get(f"/api/v1/requests/{quote(request_id, safe='')}?run_id={run_id}")

    assert (status, view["id"], view["state"]) == (202, request_id, "pending")


def test_requests_are_listed_in_pages(exporter):
    begin(exporter, "llm-server", run_id="paged", gpus=["1"])
    time.sleep(0.2)
    now = time.time()
    sent = [served(f"page-{k}", seconds=0.01, ago=0.0, labels={}) for k in range(7)]
    for k, each in enumerate(sent):
        each["ended_at"] = now + k / 100
    for part in (sent[:3], sent[3:]):
        accepted(exporter, "paged", *part)

    found, after = [], ""
    while after is not None:
        _, page = exporter.get(f"/api/v1/runs/paged/requests?limit=2{after and '&after=' + after}")
        found += [each["id"] for each in page["requests"]]
        after = page["next"]
    _, part = exporter.get(
        f"/api/v1/runs/paged/requests?start={now + 0.015:.3f}&end={now + 0.045:.3f}"
    )
    dates = [datetime.fromtimestamp(now + each, UTC).isoformat() for each in (0.015, 0.045)]
    _, same_part = exporter.get("/api/v1/runs/paged/requests?start={}&end={}".format(*dates))

    assert found == [each["id"] for each in sent]
    assert [each["id"] for each in part["requests"]] == [each["id"] for each in sent[2:5]]
    assert same_part == part


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ended_at": time.time() + 3_600}, "future"),
        ({"started_at": 1.0, "first_token_at": 2.0, "ended_at": 3.0}, "late"),
        ({"first_token_at": time.time() - 1_000}, "order"),
        ({"started_at": time.time() - 1_000}, "before_run"),
    ],
)
def test_wrong_clocks_and_late_reports_are_counted_and_declared(exporter, run_id, change, reason):
    receipt = accepted(exporter, run_id, {**served(reason, seconds=0.1, labels={}), **change})

    assert receipt["accepted"] == 0
    (text,) = receipt["reasons"]
    assert text == REASONS[reason]
    assert ("synchronize it with NTP" in text) == (reason == "future")
    assert receipt["late"] == (reason == "late")
    assert receipt["rejected"] == (reason != "late")
    exporter.wait_for_metric(
        lambda count: count == 1, "wattline_requests_rejected_total", reason=reason
    )
    notes = exporter.get(f"/api/v1/runs/{run_id}")[1]["notes"]
    assert any(text in note for note in notes)


@pytest.mark.parametrize(
    ("request_change", "status", "words"),
    [
        ({"prompt_tokens": -1}, 422, "requests[1].prompt_tokens: expected int >= 0"),
        ({"prompt_tokens": 1.5}, 422, "requests[1].prompt_tokens: expected int"),
        ({"prompt": 1}, 422, "requests[1]: object contains unknown field prompt"),
        ({"cached_tokens": 101}, 422, "requests[1].cached_tokens: expected at most prompt_tokens"),
        ({"id": "a\u001b"}, 422, "requests[1].id: expected 1 to 128 characters"),
        ({"labels": {"a b": "c"}}, 422, "requests[1].labels: expected names"),
        ({"labels": {"user": "\u202e"}}, 422, "requests[1].labels.user"),
        (
            {"labels": {f"l{k}": "" for k in range(17)}},
            422,
            "requests[1].labels: expected object of length <= 16",
        ),
        (
            {"ended_at": 1.8e12},
            422,
            "requests[1].ended_at: expected Unix seconds; divide milliseconds by 1,000",
        ),
        (
            {"ended_at": "2026-11-20T10:00Z"},
            422,
            "requests[1].ended_at: expected Unix seconds, got str",
        ),
        (
            {"first_token_at": "2026-11-20T10:00Z"},
            422,
            "requests[1].first_token_at: expected Unix seconds, got str",
        ),
        (
            {"role": "x"},
            422,
            "requests[1].role: invalid enum value 'x'; expected prefill or decode",
        ),
    ],
)
def test_invalid_fields_are_named_with_the_index(exporter, run_id, request_change, status, words):
    answer = report(
        exporter, run_id, served(100, seconds=0.1), {**served(101, seconds=0.1), **request_change}
    )

    assert_problem(answer, status, words)
    assert exporter.get("/api/v1/requests/r-100")[0] == 404


@pytest.mark.parametrize(
    ("request_change", "words"),
    [
        ({"prompt_tokens": -1}, "requests[1].prompt_tokens: expected int >= 0"),
        ({"cached_tokens": 101}, "requests[1].cached_tokens: expected at most prompt_tokens"),
        ({"id": "a\u001b"}, "requests[1].id: expected 1 to 128 characters"),
        ({"id": ""}, "requests[1].id: expected str of length >= 1"),
        (
            {"ended_at": 1.8e12},
            "requests[1].ended_at: expected Unix seconds; divide milliseconds by 1,000",
        ),
        ({"ended_at": "2026-11-20T10:00Z"}, "requests[1].ended_at: expected Unix seconds, got str"),
        ({"role": "both"}, "requests[1].role: invalid enum value"),
        ({"labels": {"a b": "c"}}, "requests[1].labels: expected names"),
        ({"labels": {"user": "\u202e"}}, "requests[1].labels.user"),
        ({"prompt": 1}, "requests: object contains unknown field prompt"),
    ],
)
def test_invalid_values_in_arrays_are_named_with_the_index(exporter, run_id, request_change, words):
    first = {**served("array-0", seconds=0.1), "cached_tokens": 0}

    answer = report_arrays(exporter, run_id, first, {**first, "id": "array-1", **request_change})

    assert_problem(answer, 422, words)
    assert exporter.get("/api/v1/requests/array-0")[0] == 404


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ended_at": [2.0]}, "requests.ended_at: expected 2 values, as many as of id, not 1"),
        (
            {"cached_tokens": []},
            "requests.cached_tokens: expected 2 values, as many as of id, not 0",
        ),
        ({"label_set": [0, 5]}, "requests[1].label_set: expected a number below 1, not 5"),
        ({"label_set": [-1, 0]}, "requests[0].label_set: expected int >= 0"),
        (
            {"id": [str(k) for k in range(5_001)]},
            "requests.id: expected at most 5,000 requests; send smaller batches",
        ),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(exporter, run_id, change, words):
    sent = [served(f"unequal-{k}", seconds=0.1) for k in range(2)]

    assert_problem(report_arrays(exporter, run_id, *sent, **change), 422, words)
    assert exporter.get("/api/v1/requests/unequal-0")[0] == 404


def test_second_request_with_the_same_id_does_not_count(exporter):
    """Whether it is in the same call or in a later one."""
    begin(exporter, "llm-server", run_id="same", gpus=["0"])
    sent = [served("same", seconds=0.1, tokens=tokens) for tokens in ((10, 10), (99, 99), (7, 7))]

    receipts = accepted(exporter, "same", *sent[:2]), accepted(exporter, "same", sent[2])

    assert [(each["accepted"], each["duplicate"]) for each in receipts] == [(1, 1), (0, 1)]
    assert all("only the first report counts" in "".join(each["reasons"]) for each in receipts)
    (stored,) = exporter.get("/api/v1/runs/same/requests")[1]["requests"]
    assert (stored["prompt_tokens"], stored["generated_tokens"]) == (10, 10)


def test_calls_with_the_most_requests_are_accepted(exporter):
    begin(exporter, "llm-server", run_id="most", gpus=["0"])
    sent = [served(f"{k:0120}", seconds=0.1, labels={"model": "m" * 100}) for k in range(5_000)]

    receipt = accepted(exporter, "most", *sent)

    assert len(json.dumps(sent)) > 400_000
    assert receipt["accepted"] == 5_000


def test_unknown_runs_bodies_and_queries_are_refused(exporter, run_id):
    assert_problem(report(exporter, "none-such", served(1)), 404, "none-such")
    assert_problem(exporter.get("/api/v1/runs/none-such/requests"), 404, "none-such")
    assert_problem(exporter.get("/api/v1/requests/none-such"), 404, "none-such")
    assert_problem(
        exporter.get("/api/v1/requests/r-0?run_id=none-such"), 404, "run_id: no run 'none-such'"
    )
    assert_problem(
        exporter.get(f"/api/v1/requests/x?run_id={run_id}"), 404, f"no request 'x' of run {run_id}"
    )
    assert_problem(exporter.get(f"/api/v1/runs/{run_id}/requests?limit=0"), 400, "limit")
    assert_problem(exporter.get(f"/api/v1/runs/{run_id}/requests?after=x"), 400, "after")
    for start in ("now", "2026-11-20T10:00"):
        assert_problem(
            exporter.get(f"/api/v1/runs/{run_id}/requests?start={start}"),
            400,
            "start: expected Unix seconds",
        )
    tiny = {"id": "r", "started_at": 1, "ended_at": 2, "prompt_tokens": 0, "generated_tokens": 0}
    most = "requests: expected at most 5,000 requests; send smaller batches"
    assert_problem(report(exporter, run_id, *([tiny] * 5_001)), 422, most)
    large, most = (
        {"requests": ["x" * 2_200_000]},
        "the body exceeds 2097152 bytes; send smaller batches",
    )
    assert_problem(exporter.post(f"/api/v1/runs/{run_id}/requests", large), 413, most)
    answer = requests.post(
        f"{exporter.url}/api/v1/runs/{run_id}/requests",
        data=b"{",
        headers={"Content-Type": "application/json"},
        timeout=30,
    )
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("page", "words"), [("access", "for reports of requests"), ("requests", "(413 beyond)")]
)
def test_page_names_the_largest_report(page, words):
    text = (Path(__file__).parents[3] / f"exporter/docs/{page}.md").read_text()

    assert f"{MAX_REPORT_BYTES // 2**20} MiB {words}" in text


def test_too_many_requests_are_refused_with_a_time_to_wait(start):
    with start("--requests.max-per-second", "10") as exporter:
        begin(exporter, "llm-server", run_id="server")
        accepted(exporter, "server", *(served(k, seconds=0.01) for k in range(20)))
        body = json.dumps({"requests": [served(k, seconds=0.01) for k in range(20, 40)]})
        answer = requests.post(
            f"{exporter.url}/api/v1/runs/server/requests",
            data=body,
            headers={"Content-Type": "application/json"},
            timeout=30,
        )

    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    assert "--requests.max-per-second" in answer.json()["detail"]
