"""Formats of the requests that `analyzer requests` reads."""

import csv
import json
import time
from datetime import UTC, datetime

import pytest

import wattline
from tests.analyzer.node import START_S
from tests.analyzer.requests.server import records
from wattline.client import recorder
from wattline.client.recorder import Recorder
from wattline_analyzer.requests.file import read_requests
from wattline_workloads.jobs.llm_load.stream import RequestOutcome, TokenUsage


def test_csv_of_requests_gives_the_same_figures(report, requests_file, served, tmp_path):
    path = tmp_path / "requests.csv"
    flat = [
        {**{k: v for k, v in one.items() if k != "labels"}, **one["labels"], "a;b": ""}
        for one in records(served)
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)

    outputs = [
        report(each, "--by", "user", "--format", "json")[1] for each in (requests_file, path)
    ]

    assert json.loads(outputs[0]) == json.loads(outputs[1])


def test_dates_with_a_time_zone_are_times(report, requests_file, served, tmp_path):
    path = tmp_path / "dates.jsonl"
    dates = [
        one
        | {
            name: datetime.fromtimestamp(one[name], UTC).isoformat()
            for name in ("started_at", "ended_at")
        }
        for one in records(served)
    ]
    path.write_text("\n".join(map(json.dumps, dates)))

    found, known = (
        json.loads(report(each, "--format", "json")[1]) for each in (path, requests_file)
    )

    assert found["requests_energy_joules"] == pytest.approx(
        known["requests_energy_joules"], rel=1e-4
    )


@pytest.mark.parametrize(
    ("change", "role"), [({"labels": {"role": "decode"}}, None), ({"role": "decode"}, "decode")]
)
def test_role_of_requests_is_a_field_and_no_label(served, tmp_path, change, role):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps(one | change) for one in records(served)))

    table = read_requests([path])

    assert table.only_role == role
    assert {labels["role"] for labels in table.label_sets} == {"decode"}


@pytest.mark.parametrize("separator", [";", "\t"])
def test_csv_with_another_separator_is_named(report, tmp_path, separator):
    path = tmp_path / "requests.csv"
    path.write_text(separator.join(("id", "started_at", "ended_at")) + "\n")

    code, _, err = report(path)

    assert code == 1
    assert (
        f"requests.csv: the columns are separated by {separator!r}; write the CSV with ','" in err
    )


@pytest.mark.parametrize("runs", [(), ("run-1", "run-2")])
def test_folder_of_several_runs_names_that_of_a_run(report, tmp_path, runs):
    for name in runs:
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").touch()

    code, _, err = report(tmp_path)

    assert code == 1
    assert f"{tmp_path} has no events.jsonl; give the folder of a run, RESULTS/RUN_ID" in err
    assert (f"such as {tmp_path}/run-2" in err) == bool(runs)


def change(**fields):
    return lambda one: one | fields


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            change(ended_at=START_S - 5),
            "request 3: the times are not in the order started_at, first_token_at, ended_at",
        ),
        (
            change(started_at=START_S * 1_000),
            "is no time in Unix seconds; divide milliseconds by 1,000",
        ),
        (change(prompt_tokens=-1), "request 3: the numbers of tokens are negative"),
        (change(generated_tokens="many"), "request 3: generated_tokens is 'many', not a number"),
        (change(generated_tokens=None), "request 3 has no generated_tokens"),
        (
            change(id="r0"),
            "request 3 has the id 'r0' of another request; give each request a unique id",
        ),
        (
            change(started_at="2023-11-14T22:13:20"),
            "started_at: '2023-11-14T22:13:20' has no time zone",
        ),
        (
            change(generated_tokens=1e300),
            "request 3: 1e+300 tokens, at most 100,000,000 are possible",
        ),
        (change(prompt_tokens=10**400), "not a number"),
        (change(started_at=-1e300), "request 3: -1e+300 is no time in Unix seconds"),
        (lambda _: 7, "request 3 is no object with fields"),
        (
            lambda _: {"event": "iteration", "work": {"requests": 1, "prompt_tokens": 5}},
            "record 3 has no t; write",
        ),
        (lambda _: {"event": "iteration", "work": [1]}, "record 3 has a wrong value"),
    ],
)
def test_invalid_request_is_named_in_one_line(report, served, tmp_path, spoil, message):
    path, lines = tmp_path / "bad.jsonl", records(served)
    lines[2] = spoil(lines[2])
    path.write_text("\n".join(map(json.dumps, lines)))

    code, _, err = report(path)

    assert code == 1
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("deep.json", "[" * 100_000, "deep.json: the JSON is nested too deep"),
        (
            "deep.jsonl",
            '{"event": "phase"}\n' + "[" * 100_000,
            "deep.jsonl: line 2: the JSON is nested too deep",
        ),
        ("long.json", "9" * 5_000, "long.json: line 1 is no JSON"),
        ("wide.csv", "id\n" + "x" * 200_000, "wide.csv is no CSV: field larger than field limit"),
    ],
)
def test_unreadable_file_is_named_in_one_line(report, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)

    code, _, err = report(tmp_path / name)

    assert code == 1
    assert message in err
    assert "Traceback" not in err


def test_requests_of_another_time_are_refused(report, served, tmp_path):
    path = tmp_path / "late.jsonl"
    shift = {"started_at": 1e6, "first_token_at": 1e6, "ended_at": 1e6}
    path.write_text(
        "\n".join(
            json.dumps(one | {k: one[k] + v for k, v in shift.items()}) for one in records(served)
        )
    )

    code, _, err = report(path)

    assert code == 1
    assert "no request is in the time of the run" in err


def test_requests_without_first_token_have_no_separate_prefill(report, served, tmp_path):
    path = tmp_path / "untimed.json"
    path.write_text(
        json.dumps({"requests": [one | {"first_token_at": None} for one in records(served)]})
    )

    code, out, err = report(path, "--format", "json")

    assert code == 0, err
    document = json.loads(out)
    assert document["prefill_energy_joules"] is None
    assert any(
        "without the time of the first token (first_token_at)" in note for note in document["notes"]
    )


def test_request_without_first_token_alone_has_no_separate_prefill(
    report, requests_file, served, tmp_path
):
    path, rows = tmp_path / "untimed.jsonl", tmp_path / "rows.csv"
    first, *others = records(served)
    path.write_text("\n".join(map(json.dumps, [first | {"first_token_at": None}, *others])))

    found, timed = (
        json.loads(report(each, "--format", "json")[1]) for each in (path, requests_file)
    )
    report(path, "--out", rows)

    with rows.open(newline="") as file:
        prefill_j = {row["id"]: row["prefill_energy_joules"] for row in csv.DictReader(file)}
    assert [name for name, joules in prefill_j.items() if not joules] == [first["id"]]
    assert found["prefill_energy_joules"] == pytest.approx(timed["prefill_energy_joules"], rel=0.01)
    assert found["prefill_energy_uncertainty_joules"] > timed["prefill_energy_uncertainty_joules"]
    assert any(
        note.startswith("1 request without the time of the first token") for note in found["notes"]
    )


def test_request_without_duration_is_left_out(report, requests_file, served, tmp_path):
    path = tmp_path / "instant.jsonl"
    at = records(served)[5]["ended_at"]
    instant = {
        "id": "instant",
        "started_at": at,
        "ended_at": at,
        "prompt_tokens": 9_000,
        "generated_tokens": 9_000,
    }
    path.write_text("\n".join(map(json.dumps, [*records(served), instant])))

    found, without = (
        json.loads(report(each, "--format", "json")[1]) for each in (path, requests_file)
    )

    assert found["groups"] == without["groups"]
    assert any("with the same start and end: left out" in note for note in found["notes"])


def test_repeated_request_counts_once(report, served, requests_file, tmp_path):
    path, lines = tmp_path / "twice.jsonl", records(served)
    path.write_text("\n".join(map(json.dumps, [*lines, lines[5]])))

    once, twice = (
        json.loads(report(each, "--format", "json")[1]) for each in (requests_file, path)
    )

    assert twice["groups"] == once["groups"]
    assert "1 request again: it counts once" in twice["notes"]


def test_folder_of_a_run_of_llm_server_has_the_same_requests(
    report, requests_file, served, tmp_path, monkeypatch
):
    writer = Recorder(tmp_path)
    monkeypatch.setattr(recorder, "recorder_for", lambda _: writer)
    run = wattline.ActiveRun("server-1", {}, None, None)
    monkeypatch.setattr(run, "_started_by", "client")
    for one in records(served):
        due_s = one["started_at"] - 0.25
        usage = TokenUsage(
            prompt_tokens=one["prompt_tokens"], generated_tokens=one["generated_tokens"]
        )
        answer = RequestOutcome(
            0.0, 0.25, one["ended_at"] - due_s, one["first_token_at"] - due_s, usage=usage
        )
        run.iteration(answer.e2e_s, answer.values(), ended_at=one["ended_at"], **answer.work())
    run.iteration(1.0, {"failed": 1}, ended_at=START_S + 5, requests_failed=1)
    writer.flush()

    outputs = [
        json.loads(report(each, "--format", "json")[1]) for each in (requests_file, tmp_path)
    ]

    assert outputs[1]["requests_energy_joules"] == pytest.approx(
        outputs[0]["requests_energy_joules"], rel=1e-6
    )
    assert outputs[1]["groups"][0]["request_p95_joules"] == pytest.approx(
        outputs[0]["groups"][0]["request_p95_joules"]
    )


def aiperf_record(one):
    first_s = one["first_token_at"] - one["started_at"]
    return {
        "metadata": {
            "x_request_id": one["id"],
            "request_start_ns": round(one["started_at"] * 1e9),
            "request_end_ns": round(one["ended_at"] * 1e9),
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        },
        "metrics": {
            "input_sequence_length": {"value": one["prompt_tokens"], "unit": "tokens"},
            "output_sequence_length": {"value": one["generated_tokens"], "unit": "tokens"},
            "time_to_first_token": {"value": first_s * 1_000, "unit": "ms"},
        },
        "error": None,
    }


def test_records_of_aiperf_give_the_same_energies(report, requests_file, served, tmp_path):
    path, lines = tmp_path / "profile_export.jsonl", [aiperf_record(one) for one in records(served)]
    failed = {
        "metadata": lines[0]["metadata"] | {"x_request_id": "lost"},
        "metrics": {},
        "error": {"code": 500},
    }
    path.write_text("\n".join(map(json.dumps, [*lines, failed])))

    known, found = (
        json.loads(report(each, "--format", "json")[1]) for each in (requests_file, path)
    )

    assert found["groups"][0]["requests"] == len(served.spans)
    assert found["requests_energy_joules"] == pytest.approx(
        known["requests_energy_joules"], rel=1e-6
    )
    assert found["prefill_energy_joules"] == pytest.approx(known["prefill_energy_joules"], rel=1e-3)


def test_result_of_vllm_bench_gives_the_same_energies(report, requests_file, served, tmp_path):
    """vLLM's times count from the start of the machine, and its date has whole seconds of local
    time.
    """
    requests, booted_s = records(served), time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    last_s = max(one["ended_at"] for one in requests)
    first_s = [one["first_token_at"] - one["started_at"] for one in requests]
    result = {
        "date": datetime.fromtimestamp(last_s + 0.2).strftime("%Y%m%d-%H%M%S"),  # noqa: DTZ006  # as vLLM does
        "duration": last_s - requests[0]["started_at"],
        "model_id": "llama",
        "total_input_tokens": sum(one["prompt_tokens"] for one in requests),
        "start_times": [one["started_at"] - booted_s for one in requests],
        "ttfts": first_s,
        "itls": [[one["ended_at"] - one["first_token_at"]] for one in requests],
        "input_lens": [one["prompt_tokens"] for one in requests],
        "output_lens": [one["generated_tokens"] for one in requests],
        "errors": [""] * len(requests),
    }
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(result))

    known, found = (
        json.loads(report(each, "--format", "json")[1]) for each in (requests_file, path)
    )

    assert found["groups"][0]["requests"] == len(served.spans)
    assert found["requests_energy_joules"] == pytest.approx(
        known["requests_energy_joules"], rel=1e-6
    )
    assert found["prefill_energy_joules"] == pytest.approx(known["prefill_energy_joules"], rel=1e-3)
