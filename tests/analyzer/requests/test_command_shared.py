"""`analyzer requests` of two servers on one GPU, whose true joules are known.

The GPU has 100 W without load. Server a runs from 0 to 120 s and adds 200 W from 10 to 110 s, by
one request of 2 s after the other. Server b runs from 30 to 90 s and adds 80 W from 40 to 80 s, by
requests of 1 s; it has a part of the GPU from 31 s on, ten seconds before its first report.
Attribution divides the idle power equally between both.
"""

import csv
import json
import sqlite3

import pytest

from tests.analyzer.loopback import history_api, http_server
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
from tests.analyzer.requests.exporter_files import energy_rows, write_divided
from wattline.contract import metrics as m
from wattline.contract.requests.served import ServedRequest
from wattline.contract.work import SHARE_POLICY

IDLE_W, A_W, B_W = 100.0, 200.0, 80.0
A_S, B_S = (0.0, 120.0), (30.0, 90.0)
A_BUSY_S, B_BUSY_S, B_FROM_S = (10.0, 110.0), (40.0, 80.0), 31.0
TOTAL_J = 120 * IDLE_W + 100 * A_W + 40 * B_W
B_J = (40 - 31) * IDLE_W / 2 + 40 * (IDLE_W / 2 + B_W) + 10 * IDLE_W / 2


def within(t, span_s):
    return min(max(t - START_S, span_s[0]), span_s[1]) - span_s[0]


def attributed_j(t):
    """Return the energies of both runs at a time."""
    b_j = IDLE_W / 2 * within(t, B_S) + B_W * within(t, B_BUSY_S)
    return {
        "a": IDLE_W * within(t, A_S) - IDLE_W / 2 * within(t, B_S) + A_W * within(t, A_BUSY_S),
        "b": b_j,
    }


def history(folder, reporting, job=None):
    """Write the samples of each second; only the runs in `reporting` report their requests. A job
    is a further run.
    """
    power = [(-1_000.0, IDLE_W), (10.0, 300.0), (40.0, 380.0), (80.0, 300.0), (110.0, IDLE_W)]
    gpu = NodeGpu([(START_S + at, watts) for at, watts in power])
    runs = {
        name: NodeRun(name, START_S + span[0], START_S + span[1])
        for name, span in (("a", A_S), ("b", B_S))
    }
    device = {"component": "gpu", "device": gpu.uuid}

    def values(t):
        yield from scrape([gpu], runs["a"], t)
        if t >= START_S + B_S[0]:
            yield from run_series([gpu], runs["b"], t)
        if job and t >= job.start_s:
            yield from run_series([gpu], job, t)
        yield m.IDLE_POWER, device, IDLE_W
        for name, joules in attributed_j(t).items():
            yield (
                m.RUN_ATTRIBUTED_ENERGY,
                {"run_id": name, **device, "policy": SHARE_POLICY},
                joules,
            )
        for name, reported_s, from_s in (("a", 12.0, 2.0), ("b", 41.0, B_FROM_S)):
            if name in reporting and t >= START_S + reported_s:
                yield m.RUN_REQUESTS_START, {"run_id": name, **device}, START_S + from_s

    times = scrape_times(1.0, START_S - 30, START_S + 150)
    return write_history(folder, series_of_scrapes((t, values(t)) for t in times))


def served(name):
    seconds, (begin_s, end_s) = (2.0, A_BUSY_S) if name == "a" else (1.0, B_BUSY_S)
    for k in range(round((end_s - begin_s) / seconds)):
        started_at = START_S + begin_s + k * seconds
        yield ServedRequest(
            f"{name}-{k}", started_at, started_at + seconds, 50, int(40 * seconds), started_at + 0.1
        )


def gpu_w(second):
    """Return the power of the GPU in a second of the run of server a."""
    a_w = A_W if A_BUSY_S[0] <= second < A_BUSY_S[1] else 0.0
    b_w = B_W if B_BUSY_S[0] <= second < B_BUSY_S[1] else 0.0
    return a_w, b_w


def seconds_of(name, *, is_shared=True, left_out=()):
    """Yield the divided seconds of a run: its part of the power and of the idle power."""
    begin_s, end_s = A_S if name == "a" else (B_FROM_S, B_S[1])
    for second in range(int(begin_s), int(end_s)):
        if second in left_out:
            continue
        a_w, b_w = gpu_w(second)
        idle_w = IDLE_W / 2 if is_shared and B_FROM_S <= second < B_S[1] else IDLE_W
        own_w = (a_w if name == "a" else b_w) if is_shared else a_w + b_w
        yield START_S + second, START_S + second + 1, idle_w + own_w, idle_w


def rows_of(name, *, is_shared=True):
    """Return the energies of the requests of a run, each the only one in its time."""
    seconds = {each[0]: each for each in seconds_of(name, is_shared=is_shared)}
    joules, idle_j = [], []
    for one in served(name):
        own = [seconds[t] for t in seconds if one.started_at <= t < one.ended_at]
        joules.append(sum(each[2] for each in own))
        idle_j.append(sum(each[3] for each in own))
    return energy_rows(joules, idle_j)


def write_requests(folder, *names, is_shared=True):
    for name in names:
        rows = rows_of(name, is_shared=is_shared)
        seconds = seconds_of(name, is_shared=is_shared)
        write_divided(folder, name, list(served(name)), rows, seconds)


@pytest.fixture
def requests_of(call, tmp_path):
    """Return a function that gives the document and the joules of each request of a run."""

    def analyze(source, name, *arguments):
        rows = tmp_path / f"{name}.csv"
        rows.unlink(missing_ok=True)
        command = ["requests", "--source", source, "--since", "4000d", "--run-id", name, *arguments]
        code, out, err = call(*command, "--format", "json", "--out", rows)
        assert code == 0, err
        with rows.open(newline="") as file:
            return json.loads(out), {
                row["id"]: float(row["energy_joules"]) for row in csv.DictReader(file)
            }

    return analyze


def true_a_j(k, from_s):
    """Return the energy of a request of server a; while b has a part, each server has half of the
    idle power.
    """
    begin_s = A_BUSY_S[0] + 2 * k
    shared_s = max(0.0, min(begin_s + 2, B_S[1]) - max(begin_s, from_s))
    return 2 * (IDLE_W + A_W) - shared_s * IDLE_W / 2


def assert_divided(of_a, of_b, from_s):
    """Check the energies of both runs, of which b has a part of the idle power from an instant."""
    (a, a_j), (b, b_j) = of_a, of_b
    totals = [
        each[name] for each in (a, b) for name in ("requests_energy_joules", "rest_energy_joules")
    ]
    assert sum(totals) == pytest.approx(TOTAL_J, rel=1e-9)
    assert sum(totals[2:]) == pytest.approx(B_J + (B_FROM_S - from_s) * IDLE_W / 2, rel=1e-9)
    assert sum(a_j.values()) == pytest.approx(totals[0], rel=1e-9)
    assert a_j == pytest.approx({f"a-{k}": true_a_j(k, from_s) for k in range(50)}, rel=1e-6)
    assert b_j == pytest.approx({f"b-{k}": IDLE_W / 2 + B_W for k in range(40)}, rel=1e-6)


def test_report_of_a_run_names_its_requests(call, tmp_path):
    path = history(tmp_path, "ab")
    write_requests(tmp_path, "a", "b")

    code, out, err = call(
        "report", "--source", path, "--since", "4000d", "--run-id", "b", "--out", tmp_path / "b"
    )

    assert code == 0, err
    line = "40 requests were reported; their energies: analyzer requests --run-id b"
    assert line in " ".join(out.split())
    assert line in (tmp_path / "b/report.html").read_text()


def test_two_servers_on_a_gpu_have_the_energies_of_the_exporter(requests_of, tmp_path):
    path = history(tmp_path, "ab")
    write_requests(tmp_path, "a", "b")

    a, b = (requests_of(path, name) for name in "ab")

    assert_divided(a, b, B_FROM_S)
    for (document, _), other in ((a, "b"), (b, "a")):
        (note,) = (
            note
            for note in document["notes"]
            if note.startswith(f"GPUs shared with {other}, whose requests")
        )
        assert "each run has the energy by the loads of its processes" in note
        assert not any("also used by" in note for note in document["notes"])
    undivided = "the exporter divided no energy in 1 s of the time: that energy is not known"
    assert [any(undivided in note for note in each["notes"]) for each, _ in (a, b)] == [False, True]


def test_requests_that_are_not_final_are_left_out(requests_of, tmp_path):
    path = history(tmp_path, "a")
    requests = list(served("a"))
    rows = rows_of("a", is_shared=False)[:20]
    rows["loss"][3:5] = 1
    seconds = seconds_of("a", is_shared=False)
    write_divided(tmp_path, "a", requests[:20], rows, seconds)
    write_divided(tmp_path, "a", requests[20:], None, [])

    document, joules = requests_of(path, "a")

    assert joules.keys() == {f"a-{k}" for k in range(20)} - {"a-3", "a-4"}
    assert document["measured_energy_joules"] == pytest.approx(TOTAL_J, rel=1e-9)
    texts = " ".join(document["notes"])
    assert "30 requests whose energy is not final yet: left out" in texts
    assert "2 requests without energy in the exporter: left out" in texts


def test_run_without_final_energies_is_refused(call, tmp_path):
    path = history(tmp_path, "a")
    write_divided(tmp_path, "a", list(served("a")), None, [])

    code, _, err = call("requests", "--source", path, "--since", "4000d", "--run-id", "a")

    assert code == 1
    assert "no request has an energy: 50 requests whose energy is not final yet" in " ".join(
        err.split()
    )


def test_files_of_two_servers_have_their_attributed_energies(requests_of, tmp_path):
    path = history(tmp_path, "ab")
    for name in "ab":
        fields = ("started_at", "first_token_at", "ended_at", "prompt_tokens", "generated_tokens")
        lines = [
            {"id": one.request_id} | {field: getattr(one, field) for field in fields}
            for one in served(name)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))

    with http_server(history_api(path)) as (address, _):
        a, b = (
            requests_of(f"http://{address}", name, "--requests", tmp_path / f"{name}.jsonl")
            for name in "ab"
        )

    assert_divided(a, b, B_S[0])
    (note,) = (note for note in a[0]["notes"] if note.startswith("GPUs shared with b"))
    assert "their energy is divided by attribution" in note


def test_a_run_without_reported_requests_takes_no_energy(requests_of, tmp_path):
    path = history(tmp_path, "a")
    write_requests(tmp_path, "a", is_shared=False)

    document, joules = requests_of(path, "a")

    assert document["measured_energy_joules"] == pytest.approx(TOTAL_J, rel=1e-9)
    assert joules["a-15"] == pytest.approx(2 * 380.0)
    (warning,) = document["warnings"]
    assert warning.startswith(
        "GPUs also used by b, without requests: all energy of the GPUs is divided"
    )
    own_j = attributed_j(START_S + A_S[1])["a"]
    assert f"({TOTAL_J:,.0f} J, of which {own_j:,.0f} J are attributed to this run)" in warning
    assert document["notes"][0] == warning


def test_roles_of_a_shared_gpu_have_the_energy_of_their_run(requests_of, tmp_path):
    path = history(tmp_path, "ab")
    write_requests(tmp_path, "a", "b")
    with sqlite3.connect(path) as connection:  # a second GPU, which only the role has
        for name, labels in connection.execute("SELECT name, labels FROM series").fetchall():
            own = json.loads(labels)
            if name in (m.GPU_INFO.name, m.GPU_ENERGY.name):
                own |= {"gpu": "1", "uuid": "GPU-00000001"}
                series = connection.execute(
                    "INSERT INTO series (name, labels) VALUES (?, ?)", (name, json.dumps(own))
                )
                connection.execute(
                    "INSERT INTO samples SELECT t_ms, ?, value FROM samples JOIN series ON "
                    "series.id = series_id "
                    "WHERE name = ? AND labels = ?",
                    (series.lastrowid, name, labels),
                )
    connection.close()

    document, _ = requests_of(path, "a", "--role", "prefill=0", "--role", "decode=1")

    assert document["measured_energy_joules"] == pytest.approx(
        2 * TOTAL_J - attributed_j(START_S + B_S[1])["b"], rel=1e-9
    )


def test_a_run_after_the_other_one_has_no_part_of_it(requests_of, tmp_path):
    """At 300 W, run a ends 2 s before run b begins, whose part is from ten seconds before its first
    report on.
    """
    gpu = NodeGpu([(START_S - 1_000.0, 300.0)])
    device, spans = (
        {"component": "gpu", "device": gpu.uuid},
        {"a": (0.0, 110.0), "b": (112.0, 150.0)},
    )
    runs = {
        name: NodeRun(name, START_S + span[0], START_S + span[1]) for name, span in spans.items()
    }

    def values(t):
        yield from scrape([gpu], runs["a"], t)
        yield m.IDLE_POWER, device, IDLE_W
        for name, reported_s in (("a", 12.0), ("b", 114.0)):
            if t >= START_S + spans[name][0]:
                joules = 300.0 * within(t, spans[name])
                yield (
                    m.RUN_ATTRIBUTED_ENERGY,
                    {"run_id": name, **device, "policy": SHARE_POLICY},
                    joules,
                )
            if t >= START_S + reported_s:
                yield m.RUN_REQUESTS_START, {"run_id": name, **device}, START_S + reported_s - 10
        if t >= START_S + spans["b"][0]:
            yield from run_series([gpu], runs["b"], t)

    times = scrape_times(1.0, START_S - 30, START_S + 170)
    path = write_history(tmp_path, series_of_scrapes((t, values(t)) for t in times))
    seconds = [(START_S + k, START_S + k + 1, 300.0, IDLE_W) for k in range(110)]
    rows = energy_rows([600.0] * 50, [2 * IDLE_W] * 50)
    write_divided(tmp_path, "a", list(served("a")), rows, seconds)

    document, joules = requests_of(path, "a")

    assert document["measured_energy_joules"] == pytest.approx(110 * 300.0, rel=1e-9)
    assert joules == pytest.approx({f"a-{k}": 600.0 for k in range(50)}, rel=1e-6)
    assert not any(note.startswith(("GPUs shared", "GPUs also")) for note in document["notes"])
