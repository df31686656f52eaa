from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.daemon import begin, end
from tests.exporter.api import UUIDS, assert_problem


def test_begin_without_gpus_takes_the_whole_node(exporter):
    run = begin(exporter, labels={"model": "tiny"})

    assert tuple(gpu["uuid"] for gpu in run["gpus"]) == UUIDS
    assert run["gpus"][0]["name"].startswith("SIMULATED")
    assert (run["state"], run["outcome"], run["ended_at"]) == ("running", None, None)
    assert end(exporter, run["run_id"])["labels"] == {"model": "tiny"}


@pytest.mark.parametrize("character", ["\u202e", "\u2066"])
def test_begin_label_with_bidirectional_character_is_422(exporter, character):
    answer = exporter.post(
        "/api/v1/runs", {"workload": "train", "labels": {"user": f"a{character}b"}}
    )

    assert_problem(
        answer,
        422,
        "labels",
        "expected text without control characters (bidirectional ones included)",
    )
    assert "\n" not in answer[1]["detail"]


def test_gpus_route_lists_the_gpus_of_the_node(exporter):
    status, answer = exporter.get("/api/v1/gpus")

    assert status == 200
    assert [(gpu["gpu"], gpu["uuid"]) for gpu in answer["gpus"]] == [
        (str(i), uuid) for i, uuid in enumerate(UUIDS)
    ]
    assert all(gpu["name"].startswith("SIMULATED") for gpu in answer["gpus"])
    assert Path(answer["simulation"]).is_file()


@pytest.mark.parametrize("name", ["1", UUIDS[1]])
def test_begin_accepts_gpu_index_and_uuid(exporter, name):
    run = begin(exporter, gpus=[name])

    assert [gpu["uuid"] for gpu in run["gpus"]] == [UUIDS[1]]
    assert list(end(exporter, run["run_id"])["energy_joules"]["gpu"]) == [UUIDS[1]]


def test_begin_repeated_returns_same_run_and_other_body_conflicts(exporter):
    body = {"workload": "train", "run_id": "same-1", "labels": {"a": "b"}}
    first, second = (exporter.post("/api/v1/runs", body) for _ in range(2))
    end(exporter, "same-1")

    assert (first[0], second[0]) == (201, 200)
    assert exporter.post("/api/v1/runs", body)[0] == 200
    assert first[1]["started_at"] == second[1]["started_at"]
    assert_problem(
        exporter.post("/api/v1/runs", body | {"workload": "other"}),
        409,
        "run_id",
        "same-1",
        "choose another",
    )


def test_begin_by_eight_clients_at_once_creates_one_run(exporter):
    body = {"workload": "train", "run_id": "at-once"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: exporter.post("/api/v1/runs", body)[0], range(8)))
        ends = list(pool.map(lambda _: exporter.post("/api/v1/runs/at-once/end", {})[1], range(8)))

    assert sorted(answers) == [200] * 7 + [201]
    assert all(run == ends[0] for run in ends)


def test_end_during_begin_ends_the_run(exporter):
    with ThreadPoolExecutor(8) as pool:
        for i in range(10):
            name = f"brief-{i}"
            begin_request = pool.submit(
                exporter.post, "/api/v1/runs", {"workload": "x", "run_id": name}
            )
            ended = pool.submit(exporter.post, f"/api/v1/runs/{name}/end", {})
            assert begin_request.result()[0] == 201
            assert ended.result()[0] in (200, 404)
            end(exporter, name)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ["workload"]),
        ({"workload": ""}, ["workload"]),
        ({"workload": "x" * 129}, ["workload"]),
        ({"workload": "a", "gpu": ["0"]}, ["gpu: unknown field; did you mean gpus?"]),
        ({"workload": "a", "gpus": ["7"]}, ["gpus", "'7'", "0 (GPU-f875"]),
        ({"workload": "a", "gpus": [0]}, ["gpus.0"]),
        ({"workload": "a", "run_id": "-x"}, ["run_id"]),
        ({"workload": "a", "run_id": "x" * 65}, ["run_id"]),
        ({"workload": "a", "run_id": "x\n"}, ["run_id"]),
        ({"workload": "a", "labels": {"1st": "x"}}, ["labels", "1st"]),
        ({"workload": "a", "labels": {"a": "x" * 129}}, ["labels.a"]),
        ({"workload": "a", "labels": {"a": 1}}, ["labels.a"]),
        ({"workload": "a", "labels": {f"l{i}": "" for i in range(17)}}, ["labels", "16"]),
        ({"workload": "a", "lease_seconds": 0}, ["lease_seconds"]),
        ({"workload": "a", "lease_seconds": "60"}, ["lease_seconds"]),
        ({"workload": "a", "pids": [0]}, ["pids.0"]),
        ({"workload": "a", "pids": [2**70]}, ["pids"]),
        ([], ["body"]),
    ],
)
def test_begin_invalid_request_names_the_field(exporter, body, words):
    assert_problem(exporter.post("/api/v1/runs", body), 422, *words)


def test_begin_accepts_sixteen_labels_of_any_text(exporter):
    labels = {f"l{i}": 'q"\\\n\u00e9\u4e16' * 10 for i in range(16)}
    run = begin(exporter, 'a "b" \\ \n', labels=labels)

    assert run["labels"] == labels
    ((exported, _),) = [
        s for s in exporter.metrics()["wattline_run_info"] if s[0]["run_id"] == run["run_id"]
    ]
    assert exported["workload"] == 'a "b" \\ \n'
    assert {f"label_{name}": value for name, value in labels.items()}.items() <= exported.items()
    end(exporter, run["run_id"])


def test_begin_lone_surrogate_does_not_break_the_scrape(exporter):
    answer = requests.post(
        f"{exporter.url}/api/v1/runs",
        data=r'{"workload": "a\ud800b"}',
        headers={"Content-Type": "application/json"},
        timeout=30,
    )

    assert answer.status_code in (201, 400, 422)
    assert exporter.get("/metrics")[0] == 200


def test_begin_65th_open_run_is_rejected(start):
    with start() as exporter:
        for i in range(64):
            begin(exporter, run_id=f"run-{i}")
        assert_problem(exporter.post("/api/v1/runs", {"workload": "x"}), 429, "64", "end one")
        assert exporter.post("/api/v1/runs", {"workload": "test", "run_id": "run-0"})[0] == 200
        end(exporter, "run-0")

        begin(exporter, run_id="run-64")
        status, running = exporter.get("/api/v1/runs?state=running")
        assert status == 200
        assert len(running) == 64
