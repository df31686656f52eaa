"""`analyzer requests` of a client's run, whose requests its server reported in the run of the
server.

`test_requests_shared` has the server and the GPU: run a has one request of 2 s after the other. Run
b, from 30 to 90 s, belongs to a client, which sent each second one of the requests from 32 to 88 s.
All the power is the server's.
"""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from tests.analyzer.node import START_S, NodeRun
from tests.analyzer.requests.exporter_files import write_divided
from tests.analyzer.requests.test_command_shared import (
    A_W,
    B_W,
    IDLE_W,
    history,
    requests_of,
    rows_of,
    seconds_of,
    served,
)
from wattline.contract.history import REQUESTS_FILE
from wattline.contract.requests.served import CLIENT_RUN_LABEL, client_run_mark
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.requests.client_runs import client_runs, requests_of_client
from wattline_analyzer.requests.stored import read_stored_requests

__all__ = ["requests_of"]  # a fixture

BUSY_W = IDLE_W + A_W
MEASURED_J = 60 * BUSY_W + 40 * B_W
OWN = range(11, 39, 2)
OWN_J = {f"a-{k}": 2 * (BUSY_W + (B_W if 15 <= k < 35 else 0.0)) for k in OWN}


def write_requests(folder, *, by_label, left_out=()):
    """Write the requests of the server; those of the client have its run as label, or in their
    ids.
    """
    requests = []
    for k, one in enumerate(served("a")):
        own = k in OWN
        labels = {"user": "ann", CLIENT_RUN_LABEL: "b"} if own and by_label else {"user": "bob"}
        mark = f"chatcmpl-{client_run_mark('b')}" if own and not by_label else ""
        requests.append(replace(one, request_id=mark + one.request_id, labels=labels))
    seconds = seconds_of("a", is_shared=False, left_out=left_out)
    write_divided(folder, "a", requests, rows_of("a", is_shared=False), seconds)


@pytest.mark.parametrize("by_label", [True, False])
def test_requests_of_a_client_have_their_energy_of_the_server(requests_of, tmp_path, by_label):
    path = history(tmp_path, "a")
    write_requests(tmp_path, by_label=by_label)

    document, joules = requests_of(path, "b")

    assert document["measured_energy_joules"] == pytest.approx(MEASURED_J, rel=1e-9)
    assert {name.rpartition("~")[2]: each for name, each in joules.items()} == pytest.approx(
        OWN_J, rel=1e-6
    )
    assert document["requests_energy_joules"] == pytest.approx(sum(OWN_J.values()), rel=1e-6)
    assert document["rest_energy_joules"] == pytest.approx(
        MEASURED_J - sum(OWN_J.values()), rel=1e-6
    )
    assert (
        "the server reported these requests, in run a: the energy is the server's"
        in document["notes"]
    )
    assert (
        "other requests to the server in this time, whose energy is in the rest: 16"
        in document["notes"]
    )
    attributed = (
        f"{60 * IDLE_W / 2 + 40 * B_W:,.0f} J are attributed to run b, as in analyzer "
        "report: the share"
    )
    assert any(note.startswith(attributed) for note in document["notes"])


def test_groups_of_a_client_have_only_its_requests(requests_of, tmp_path):
    path = history(tmp_path, "a")
    write_requests(tmp_path, by_label=True)

    document, _ = requests_of(path, "b", "--by", "user", "--policy", "idle_apart")

    [group] = document["groups"]
    assert (group["user"], group["requests"]) == ("ann", len(OWN))
    assert group["energy_joules"] == pytest.approx(
        sum(OWN_J.values()) - 2 * len(OWN) * IDLE_W, rel=1e-6
    )
    assert group["energy_joules"] + document["rest_energy_joules"] == pytest.approx(
        MEASURED_J, rel=1e-6
    )


def test_further_run_with_requests_of_a_client_is_warned_of(requests_of, tmp_path):
    """One of two servers behind an address reports; the client reports the requests of the other
    one.
    """
    path = history(tmp_path, "ab")
    write_requests(tmp_path, by_label=True)
    write_divided(tmp_path, "b", list(served("b")), rows_of("b"), seconds_of("b"))

    document, _ = requests_of(path, "b")

    assert document["warnings"][0] == (
        "run a has 14 further requests of this run, which are not counted here: see analyzer "
        "requests --run-id a --by "
        "client_run"
    )


def test_note_of_undivided_time_counts_the_time_that_was_asked_for(requests_of, tmp_path):
    """No energy is divided from 50 to 54 s, and from 94 to 104 s."""
    path = history(tmp_path, "a")
    write_requests(tmp_path, by_label=True, left_out=(*range(50, 54), *range(94, 104)))

    def gap(name, *part):
        document, _ = requests_of(path, name, *part)
        return [
            note.removeprefix("the exporter divided no energy in ").partition(" s ")[0]
            for note in document["notes"]
            if note.endswith("that energy is in the rest")
        ]

    assert (gap("a"), gap("b")) == (["14"], ["4"])
    assert gap("a", "--start", START_S + 45, "--end", START_S + 52) == ["2"]
    assert gap("b", "--start", START_S + 60) == []


def test_file_of_a_client_has_the_energy_of_its_server(requests_of, tmp_path):
    """Attribution gives the client's run 180 W at most."""
    path = history(tmp_path, "a")
    write_requests(tmp_path, by_label=True)
    fields = ("started_at", "first_token_at", "ended_at", "prompt_tokens", "generated_tokens")
    lines = [
        {"id": one.request_id} | {field: getattr(one, field) for field in fields}
        for one in served("a")
    ]
    file = tmp_path / "b.jsonl"
    file.write_text("\n".join(json.dumps(lines[k]) for k in range(11, 39)))

    _, joules = requests_of(path, "b", "--requests", file)

    assert joules["a-11"] == pytest.approx(2 * BUSY_W)
    assert joules["a-20"] == pytest.approx(2 * (BUSY_W + B_W))


def test_server_of_a_client_names_no_other_work(requests_of, tmp_path):
    path = history(tmp_path, "a")
    write_requests(tmp_path, by_label=True)

    document, joules = requests_of(path, "a")

    assert len(joules) == 50
    assert not any("also used by" in note for note in document["notes"])


def test_job_of_another_server_is_no_other_work(requests_of, tmp_path):
    """Runs a and b are servers, whose requests jobs sent; that of a is only the time of it."""
    path = history(
        tmp_path, "ab", NodeRun("job-a", START_S + 35, START_S + 85, workload="llm-server")
    )
    for name in "ab":
        requests = [replace(one, labels={CLIENT_RUN_LABEL: f"job-{name}"}) for one in served(name)]
        write_divided(tmp_path, name, requests, rows_of(name), seconds_of(name))

    documents = [requests_of(path, name)[0] for name in ("a", "b", "job-a")]

    assert [each["warnings"] for each in documents] == [[], [], []]


def test_run_without_any_requests_is_refused_as_before(call, tmp_path):
    path = history(tmp_path, "a")
    write_requests(tmp_path, by_label=True)
    with sqlite3.connect(tmp_path / REQUESTS_FILE) as connection:
        connection.execute("UPDATE batch SET run_id = 'c'")
    connection.close()

    for run_id, message in (("b", "no requests of run b at"), ("unknown", "no run 'unknown' at")):
        code, _, err = call("requests", "--source", path, "--since", "4000d", "--run-id", run_id)
        assert code == 1
        assert message in err


def test_requests_of_a_time_are_those_that_overlap_with_it(tmp_path):
    path = history(tmp_path, "a")
    write_requests(tmp_path, by_label=True)
    with closing(HistorySource(path)) as source:
        table = read_stored_requests(source, "a", (START_S + 31.0, START_S + 89.0))

    assert [table.ids[0], table.ids[len(table.ids) - 1]] == ["a-10", "a-39"]
    assert requests_of_client(table, "b").sum() == len(OWN)
    assert client_runs(table) == {"b"}
