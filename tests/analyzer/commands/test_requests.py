"""`analyzer requests` on a history file of a simulated server whose true joules are known."""

import csv
import json
import re
import time
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

import wattline
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes, write_history
from tests.exporter.request_energy.proration import by_time
from tests.exporter.request_energy.server import IDLE_W, serve
from wattline.client import recorder
from wattline.client.recorder import Recorder
from workloads.jobs.llm_load.stream import RequestOutcome, TokenUsage

BEFORE_S, AFTER_S = 4.0, 5.0


@pytest.fixture(scope="module")
def served():
    return serve(np.random.default_rng(4), "conversation", 0.6, 60.0)


@pytest.fixture(scope="module")
def end_s(served):
    return START_S + BEFORE_S + float(served.steps[-1, 0] + served.steps[-1, 1]) + AFTER_S


@pytest.fixture(scope="module")
def history(served, end_s, tmp_path_factory):
    """Two GPUs that share the server's power equally, with a sample each second."""
    steps = [(START_S - 100, IDLE_W / 2)]
    for begin, seconds, joules in served.steps:
        begin_s = START_S + BEFORE_S + begin
        steps = [one for one in steps if one[0] < begin_s]
        steps += [(begin_s, (IDLE_W + joules / seconds) / 2), (begin_s + seconds, IDLE_W / 2)]
    gpus = [NodeGpu(steps, index=index) for index in ("0", "1")]
    run = NodeRun("server-1", start_s=START_S, end_s=end_s, workload="serve")

    def values(t):
        yield from scrape(gpus, run, t)
        for gpu in gpus:
            yield m.IDLE_POWER, {"component": "gpu", "device": gpu.uuid}, IDLE_W / 2

    times = scrape_times(1.0, START_S - 30, end_s + 30)
    return write_history(tmp_path_factory.mktemp("requests"), series_of_scrapes((t, values(t)) for t in times))


@pytest.fixture(scope="module")
def true_j(served, end_s):
    """Energy of both GPUs in the run."""
    return IDLE_W * (end_s - START_S) + float(served.steps[:, 2].sum())


def records(served) -> list[dict]:
    spans, offset = served.spans, START_S + BEFORE_S
    return [
        {
            "id": f"r{k}",
            "started_at": offset + spans.arrived_s[k],
            "first_token_at": offset + spans.first_token_s[k],
            "ended_at": offset + spans.ended_s[k],
            "prompt_tokens": int(spans.prompt_tokens[k]),
            "generated_tokens": int(spans.generated_tokens[k]),
            "labels": {"user": "ann" if k % 3 else "bob"},
        }
        for k in range(len(spans))
    ]


@pytest.fixture
def requests_file(served, tmp_path):
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(map(json.dumps, records(served))))
    return path


@pytest.fixture
def report(call, history):
    def of(path, *arguments):
        return call(
            "requests", "--source", history, "--since", "4000d", "--run-id", "server-1", "--requests", path, *arguments
        )

    return of


def test_requests_and_rest_add_up_to_the_true_energy(report, requests_file, true_j, served):
    code, out, err = report(requests_file, "--by", "user", "--format", "json", "--price", "0.5", "--carbon", "300")

    assert code == 0, err
    document = json.loads(out)
    assert document["measured_energy_joules"] == pytest.approx(true_j, rel=1e-4)
    groups = {group["user"]: group for group in document["groups"]}
    assert groups.keys() == {"ann", "bob"}
    total_j = sum(group["energy_joules"] for group in groups.values())
    assert total_j == pytest.approx(document["requests_energy_joules"])
    assert total_j + document["rest_energy_joules"] == pytest.approx(true_j, rel=1e-4)
    assert sum(group["requests"] for group in groups.values()) == len(served.spans)
    assert groups["ann"]["cost"] == pytest.approx(0.5 * groups["ann"]["energy_joules"] / 3.6e6)
    assert groups["ann"]["emissions_grams"] == pytest.approx(300 * groups["ann"]["energy_joules"] / 3.6e6)


def test_requests_are_closer_to_shapley_values_than_by_time_in_flight(report, requests_file, served, tmp_path):
    rows = tmp_path / "rows.csv"

    code, _, err = report(requests_file, "--policy", "idle_apart", "--out", rows)

    assert code == 0, err
    with rows.open(newline="") as file:
        found = list(csv.DictReader(file))
    energy = np.array([float(row["energy_joules"]) for row in found])
    half = np.array([float(row["energy_uncertainty_joules"]) for row in found])
    assert (np.diff(energy) <= 0).all(), "the most expensive requests first"
    order = {record["id"]: place for place, record in enumerate(records(served))}
    places = np.argsort([order[row["id"]] for row in found])
    energy, half = energy[places], half[places]
    shapley_j = served.shapley_j
    slots = served.slots(1.0, np.random.default_rng(0), noise_w=0.0)
    error, time_error = (np.abs(one - shapley_j).mean() for one in (energy, by_time(served.spans, slots)))
    assert error < 0.5 * time_error
    assert np.mean(np.abs(energy - shapley_j) <= half) >= 0.8, "errors of one server are not independent"


def test_table_names_the_most_expensive_requests_first(report, requests_file):
    code, out, err = report(requests_file, "--top", "3")

    assert code == 0, err
    assert "Requests with the most energy, 3 of" in out
    assert "run server-1:" in out
    sums = re.search(r"energy of the GPUs [\d.,]+ (\w+): requests [\d.,]+ (\w+), rest [\d.,]+ (\w+)", out)
    assert sums is not None
    assert len(set(sums.groups())) == 1, "figures that add up have one unit"


def test_csv_of_requests_gives_the_same_figures(report, requests_file, served, tmp_path):
    path = tmp_path / "requests.csv"
    flat = [{**{k: v for k, v in one.items() if k != "labels"}, **one["labels"]} for one in records(served)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)

    outputs = [report(each, "--by", "user", "--format", "json")[1] for each in (requests_file, path)]

    assert json.loads(outputs[0]) == json.loads(outputs[1])


def change(**fields):
    return lambda one: one | fields


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            change(ended_at=START_S - 5),
            "request 3: the times are not in the order started_at, first_token_at, ended_at",
        ),
        (change(started_at=START_S * 1_000), "is no time in Unix seconds; divide milliseconds by 1,000"),
        (
            lambda one: one | {"first_token_at": one["started_at"], "ended_at": one["started_at"]},
            "request 3: it ended at the time at which it started, so its energy is unknown",
        ),
        (change(prompt_tokens=-1), "request 3: the numbers of tokens are negative"),
        (change(generated_tokens="many"), "request 3: generated_tokens is 'many', not a number"),
        (change(generated_tokens=None), "request 3 has no generated_tokens"),
        (change(id="r0"), "request 3 has the id 'r0' of another request; give each request a unique id"),
        (lambda _: 7, "request 3 is no object with fields"),
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


def test_requests_of_another_time_are_refused(report, served, tmp_path):
    path = tmp_path / "late.jsonl"
    shift = {"started_at": 1e6, "first_token_at": 1e6, "ended_at": 1e6}
    path.write_text("\n".join(json.dumps(one | {k: one[k] + v for k, v in shift.items()}) for one in records(served)))

    code, _, err = report(path)

    assert code == 1
    assert "no request is in the time of the run" in err


def test_requests_without_first_token_have_no_separate_prefill(report, served, tmp_path):
    path = tmp_path / "untimed.json"
    path.write_text(json.dumps({"requests": [one | {"first_token_at": None} for one in records(served)]}))

    code, out, err = report(path, "--format", "json")

    assert code == 0, err
    document = json.loads(out)
    assert document["prefill_energy_joules"] is None
    assert any("requests without first_token_at" in note for note in document["notes"])


def test_repeated_request_counts_once(report, served, requests_file, tmp_path):
    path, lines = tmp_path / "twice.jsonl", records(served)
    path.write_text("\n".join(map(json.dumps, [*lines, lines[5]])))

    once, twice = (json.loads(report(each, "--format", "json")[1]) for each in (requests_file, path))

    assert twice["groups"] == once["groups"]
    assert "requests that occur more than once and count once: 1" in twice["notes"]


def test_folder_of_a_run_of_llm_server_has_the_same_requests(report, requests_file, served, tmp_path, monkeypatch):
    writer = Recorder(tmp_path)
    monkeypatch.setattr(recorder, "recorder_for", lambda _: writer)
    run = wattline.Run("server-1", {}, None, None)
    monkeypatch.setattr(run, "_started_by", "client")
    for one in records(served):
        due_s = one["started_at"] - 0.25
        usage = TokenUsage(prompt_tokens=one["prompt_tokens"], generated_tokens=one["generated_tokens"])
        answer = RequestOutcome(0.0, 0.25, one["ended_at"] - due_s, one["first_token_at"] - due_s, usage=usage)
        run.iteration(answer.e2e_s, answer.values(), ended_at=one["ended_at"], **answer.work())
    run.iteration(1.0, {"failed": 1}, ended_at=START_S + 5, requests_failed=1)
    writer.flush()

    outputs = [json.loads(report(each, "--format", "json")[1]) for each in (requests_file, tmp_path)]

    assert outputs[1]["requests_energy_joules"] == pytest.approx(outputs[0]["requests_energy_joules"], rel=1e-6)
    assert outputs[1]["groups"][0]["request_p95_joules"] == pytest.approx(outputs[0]["groups"][0]["request_p95_joules"])


def test_time_range_without_a_run_gives_the_energies_of_the_run(call, history, requests_file, end_s, report):
    window = ["--start", f"{START_S}", "--end", f"{end_s}"]

    code, out, err = call("requests", "--source", history, *window, "--requests", requests_file, "--format", "json")

    assert code == 0, err
    of_range, of_run = json.loads(out), json.loads(report(requests_file, "--format", "json")[1])
    assert of_range["run_id"] is None
    for name in ("measured_energy_joules", "requests_energy_joules", "energy_per_generated_token_joules"):
        assert of_range[name] == pytest.approx(of_run[name], rel=0.01)


def test_half_of_the_gpus_have_half_of_the_energy(call, history, requests_file, end_s, true_j):
    window = ["--start", f"{START_S}", "--end", f"{end_s}", "--gpus", "1"]

    code, out, err = call("requests", "--source", history, *window, "--requests", requests_file, "--format", "json")

    assert code == 0, err
    assert json.loads(out)["measured_energy_joules"] == pytest.approx(true_j / 2, rel=0.01)


def test_roles_add_up_to_the_energy_of_all_gpus(report, requests_file, true_j):
    code, out, err = report(requests_file, "--role", "prefill=0", "--role", "decode=1", "--format", "json")

    assert code == 0, err
    document = json.loads(out)
    assert document["measured_energy_joules"] == pytest.approx(true_j, rel=0.01)
    total_j = document["requests_energy_joules"] + document["rest_energy_joules"]
    assert total_j == pytest.approx(document["measured_energy_joules"], rel=1e-9)
    assert document["prefill_energy_joules"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--role", "prefill=0"], "--role: expected both prefill=0,1 and decode=2,3, with different GPUs"),
        (["--role", "prefill=0", "--role", "decode=0"], "--role: expected both"),
        (["--role", "prefill=0", "--role", "decode=7"], "GPU 7 is not known; known GPUs: 0, 1"),
        (["--start", "1"], "give --run-id"),
    ],
)
def test_invalid_range_or_role_is_named(report, requests_file, arguments, message):
    code, _, err = report(requests_file, *arguments)

    assert code != 0
    assert message in " ".join(err.replace("│", " ").split())


def test_groups_by_length_add_up_to_all_requests(report, requests_file, served):
    code, out, err = report(requests_file, "--by", "length", "--format", "json")

    assert code == 0, err
    groups = json.loads(out)["groups"]
    short = int(np.count_nonzero(served.spans.generated_tokens <= 32))
    assert {group["length"]: group["requests"] for group in groups}["up to 32"] == short
    assert sum(group["requests"] for group in groups) == len(served.spans)


def test_out_folder_has_the_page_the_plot_and_a_row_for_each_request(report, requests_file, served, tmp_path):
    folder = tmp_path / "out"

    code, _, err = report(requests_file, "--by", "user", "--price", "0.3", "--out", folder)

    assert code == 0, err
    rows = pd.read_parquet(folder / "requests.parquet")
    assert len(rows) == len(served.spans)
    assert rows["energy_joules"].is_monotonic_decreasing
    page = (folder / "requests.html").read_text()
    assert rows["id"][0] in page
    assert "http" not in page.replace("http-equiv", "")
    assert (folder / "requests.png").read_bytes().startswith(b"\x89PNG")


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
    failed = {"metadata": lines[0]["metadata"] | {"x_request_id": "lost"}, "metrics": {}, "error": {"code": 500}}
    path.write_text("\n".join(map(json.dumps, [*lines, failed])))

    known, found = (json.loads(report(each, "--format", "json")[1]) for each in (requests_file, path))

    assert found["groups"][0]["requests"] == len(served.spans)
    assert found["requests_energy_joules"] == pytest.approx(known["requests_energy_joules"], rel=1e-6)
    assert found["prefill_energy_joules"] == pytest.approx(known["prefill_energy_joules"], rel=1e-3)


def test_result_of_vllm_bench_gives_the_same_energies(report, requests_file, served, tmp_path):
    """vLLM's times count from the start of the machine, and its date has whole seconds of local time."""
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

    known, found = (json.loads(report(each, "--format", "json")[1]) for each in (requests_file, path))

    assert found["groups"][0]["requests"] == len(served.spans)
    assert found["requests_energy_joules"] == pytest.approx(known["requests_energy_joules"], rel=1e-6)
    assert found["prefill_energy_joules"] == pytest.approx(known["prefill_energy_joules"], rel=1e-3)
