"""Request bodies of the run API."""

import pytest
from pydantic import ValidationError

from wattline_exporter.runs.admission import RunEnd, RunProcesses, RunStart
from wattline_exporter.web.bodies import (
    BeginRequest,
    EndRequest,
    ProcessesRequest,
    WorkRequest,
    error_reason,
)


def test_begin_request_becomes_the_start_of_a_run():
    body = BeginRequest.model_validate_json(
        '{"workload": "train", "labels": {"model": "gpt2"}, "gpus": ["0"], "pids": [7], "lease_seconds": 60}'
    )

    assert body.start == RunStart(
        "train", {"model": "gpt2"}, ["0"], [7], None, None, None, lease_seconds=60.0
    )
    assert BeginRequest(workload="train").start == RunStart("train", {}, None, [])


def test_equal_starts_have_one_digest_in_any_order_of_labels():
    start = RunStart("train", {"a": "1", "b": "2"}, run_id="r")

    assert start.digest == RunStart("train", {"b": "2", "a": "1"}, run_id="r").digest
    assert start.digest != RunStart("train", {"a": "1", "b": "3"}, run_id="r").digest
    assert RunStart("train").digest != RunStart("train", gpus=()).digest


def test_processes_and_end_requests_become_those_of_the_ledger():
    processes = ProcessesRequest(pids=[7], pid_namespace=3, cgroup="/a").processes
    end = EndRequest(outcome="failed", ended_at=1.5, work={"steps": 2.0}, results={"loss": 0.5}).end

    assert processes == RunProcesses([7], 3, "/a")
    assert end == RunEnd("failed", 1.5, {"steps": 2.0}, {"loss": 0.5})


def test_work_request_has_amounts_by_unit():
    body = WorkRequest.model_validate_json('{"contributor": "rank-0", "steps": 2, "tokens": 3.5}')

    assert (body.contributor, body.amounts) == ("rank-0", {"steps": 2.0, "tokens": 3.5})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"workload": "train", "run_id": "a/b"}, "expected 1 to 64 letters, digits, '.', '_' or"),
        ({"workload": "w" * 129}, "String should have at most 128 characters"),
    ],
)
def test_error_reason_has_words_instead_of_a_pattern(body, reason):
    with pytest.raises(ValidationError) as caught:
        BeginRequest.model_validate(body)
    (error,) = caught.value.errors()

    assert error_reason(error["type"], error["msg"], error["ctx"]).startswith(reason)
