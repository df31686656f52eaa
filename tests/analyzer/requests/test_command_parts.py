"""`analyzer requests` of a part of a server's requests beside other work on the same GPU, with
known true joules.

A process without a run adds 150 W throughout, which are in the rest. A client's run and the two parts lie within the
time of the load.
"""

import csv
import json
from dataclasses import dataclass

import numpy as np
import pytest

from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from tests.analyzer.requests.exporter_files import ERROR_J, energy_rows, write_divided
from tests.exporter.requests.division.server import IDLE_W, serve
from wattline.contract import metrics as m
from wattline.contract.requests.served import CLIENT_RUN_LABEL, ServedRequest

QUIET_S, OTHER_W = 20.0, 150.0
JOB_S = (START_S + 34.3, START_S + 69.6)
MIDDLE_S = START_S + 52.7


@dataclass(frozen=True)
class Rows:
    """Document of the command, and joules and half-widths by request."""

    document: dict
    joules: dict[str, float]
    half_j: dict[str, float]

    def energy_j(self, name):
        return self.document[f"{name}_energy_joules"]


@pytest.fixture(scope="module")
def served():
    return serve(np.random.default_rng(1), "conversation", 0.8, 60.0)


@pytest.fixture(scope="module")
def end_s(served):
    return START_S + QUIET_S + float(served.steps[-1, :2].sum()) + QUIET_S


@pytest.fixture(scope="module")
def sent(served):
    """Requests of the server; every second one within the time of the job is the job's."""
    spans, offset = served.spans, START_S + QUIET_S
    own = (
        (spans.arrived_s + offset > JOB_S[0])
        & (spans.ended_s + offset < JOB_S[1])
        & (np.arange(len(spans)) % 2 == 0)
    )
    return [
        ServedRequest(
            f"r{k}",
            offset + spans.arrived_s[k],
            offset + spans.ended_s[k],
            int(spans.prompt_tokens[k]),
            int(spans.generated_tokens[k]),
            offset + spans.first_token_s[k],
            labels={CLIENT_RUN_LABEL: "job-1"} if own[k] else {},
        )
        for k in range(len(spans))
    ]


@pytest.fixture(scope="module")
def history(served, end_s, sent, tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    steps = [(START_S - 100, IDLE_W + OTHER_W)]
    for begin, seconds, joules in served.steps:
        begin_s = START_S + QUIET_S + begin
        steps = [one for one in steps if one[0] < begin_s]
        steps += [
            (begin_s, IDLE_W + OTHER_W + joules / seconds),
            (begin_s + seconds, IDLE_W + OTHER_W),
        ]
    gpu = NodeGpu(steps)
    server, job = (
        NodeRun("server-1", START_S, end_s),
        NodeRun("job-1", *JOB_S, workload="llm-server"),
    )
    device = {"component": "gpu", "device": gpu.uuid}

    def values(t):
        yield from scrape([gpu], server, t)
        yield m.IDLE_POWER, device, IDLE_W
        if t >= JOB_S[0]:
            yield from run_series([gpu], job, t)
        if t >= START_S + QUIET_S + 5:
            yield m.RUN_REQUESTS_START, {"run_id": "server-1", **device}, START_S + QUIET_S

    times = scrape_times(1.0, START_S - 30, end_s + 30)
    seconds_s = np.append(np.arange(START_S, end_s), end_s)
    joules = np.diff(np.interp(seconds_s, *energy_of(steps)))
    spans = served.spans
    idle_j = IDLE_W * (spans.ended_s - spans.arrived_s) / 10
    write_divided(
        folder,
        "server-1",
        sent,
        energy_rows(served.shapley_j + idle_j, idle_j),
        zip(
            seconds_s[:-1].tolist(),
            seconds_s[1:].tolist(),
            joules.tolist(),
            (IDLE_W * np.diff(seconds_s)).tolist(),
            strict=True,
        ),
    )
    return write_history(folder, series_of_scrapes((t, values(t)) for t in times))


def energy_of(steps):
    """Return times, and the energies up to them, of steps of power."""
    times_s, watts = np.array([*steps, (steps[-1][0] + 1_000.0, 0.0)]).T
    return times_s, np.append(0.0, np.cumsum(watts[:-1] * np.diff(times_s)))


@pytest.fixture
def rows_of(call, history, tmp_path):
    """Return a function that gives the rows of a run or a part of it, idle energy apart."""

    def analyze(run_id, *arguments):
        out = tmp_path / "rows.csv"
        out.unlink(missing_ok=True)
        command = (
            "requests",
            "--source",
            history,
            "--since",
            "4000d",
            "--run-id",
            run_id,
            "--policy",
            "idle_apart",
        )
        code, text, err = call(*command, *arguments, "--format", "json", "--out", out)
        assert code == 0, err
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
        columns = ("energy_joules", "energy_uncertainty_joules")
        joules, half_j = ({row["id"]: float(row[column]) for row in rows} for column in columns)
        return Rows(json.loads(text), joules, half_j)

    return analyze


def test_requests_have_the_stored_energies(rows_of, served, sent):
    """With 2 J by the model, 2 % of the energy above idle, and 5 % of the idle energy."""
    whole = rows_of("server-1")

    idle_j = IDLE_W * (served.spans.ended_s - served.spans.arrived_s) / 10
    random_j = 1.96 * np.hypot(ERROR_J, 0.02 * served.shapley_j)
    names = [one.request_id for one in sent]
    assert [whole.joules[name] for name in names] == pytest.approx(
        served.shapley_j.tolist(), rel=1e-6
    )
    assert [whole.half_j[name] for name in names] == pytest.approx(
        np.hypot(random_j, 0.05 * idle_j).tolist(), rel=1e-4
    )


def test_request_has_the_same_joules_through_each_command(rows_of, sent):
    whole, job = rows_of("server-1"), rows_of("job-1")
    parts = rows_of("server-1", "--end", MIDDLE_S), rows_of("server-1", "--start", MIDDLE_S)

    own = {one.request_id for one in sent if one.labels}
    assert job.joules.keys() == own
    assert parts[0].joules.keys() | parts[1].joules.keys() == whole.joules.keys()
    for part in (job, *parts):
        assert part.joules == pytest.approx(
            {name: whole.joules[name] for name in part.joules}, rel=1e-9
        )
        assert part.half_j == pytest.approx(
            {name: whole.half_j[name] for name in part.half_j}, rel=1e-9
        )


def test_disjoint_parts_add_up_to_the_whole_run(rows_of, sent):
    whole = rows_of("server-1")
    parts = [rows_of("server-1", "--end", MIDDLE_S), rows_of("server-1", "--start", MIDDLE_S)]

    assert sum(len(part.joules) for part in parts) == len(sent), (
        "a request belongs to the part in which it ends"
    )
    for name in ("measured", "requests", "rest"):
        assert sum(part.energy_j(name) for part in parts) == pytest.approx(
            whole.energy_j(name), rel=1e-9
        )
    for part in parts:
        assert part.energy_j("requests") + part.energy_j("rest") == pytest.approx(
            part.energy_j("measured"), rel=1e-9
        )


def test_part_of_a_clients_run_has_the_requests_that_end_in_it(rows_of, sent):
    whole, part = rows_of("job-1"), rows_of("job-1", "--end", MIDDLE_S)

    own = {one.request_id for one in sent if one.labels and one.ended_at <= MIDDLE_S}
    assert part.joules == pytest.approx({name: whole.joules[name] for name in own}, rel=1e-9)
