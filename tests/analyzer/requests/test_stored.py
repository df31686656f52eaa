"""Requests in the state folder of an exporter, as a table."""

import json
import math
import sqlite3
from contextlib import closing

import pytest

from tests.analyzer.loopback import Reply, http_server
from tests.unprivileged import unprivileged
from tests.workloads.wattline.contract.packed_requests import packed
from wattline.contract.history import REQUESTS_FILE
from wattline.contract.requests.served import ServedRequest
from wattline.contract.requests.stored import REQUESTS_SCHEMA
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.requests.stored import read_stored_requests


def write(folder, *batches):
    with sqlite3.connect(folder / REQUESTS_FILE) as connection:
        connection.executescript(REQUESTS_SCHEMA)
        for run_id, requests in batches:
            connection.execute(
                "INSERT INTO batch (run_id, first_end, last_end, requests, body) VALUES (?, 0, 0, "
                "?, ?)",
                (
                    run_id,
                    len(requests),
                    requests if isinstance(requests, bytes) else packed(requests),
                ),
            )
    connection.close()


@pytest.fixture
def source(steady_history):
    source = HistorySource(steady_history)
    yield source
    source.close()


def test_batches_become_one_table_in_the_order_of_arrival(source):
    late = ServedRequest("late-é", 30.0, 33.0, 7, 5, 31.0, 2, {"user": "ann"}, "decode")
    early = ServedRequest("early", 10.0, 12.0, 100_000_000, 1, None, 0, {"user": "ann"})
    middle = ServedRequest("middle", 20.0, 25.0, 3, 4, None, 0, {})
    write(source.folder, ("r", [late, middle]), ("other", [early]), ("r", [early]))

    table = read_stored_requests(source, "r")

    assert list(table.ids) == ["early", "middle", "late-é"]
    assert table.spans.arrived_s.tolist() == [10, 20, 30]
    assert table.spans.first_token_s.tolist() == [12, 20 + 3 / 803 * 5, 31], (
        "of one token its end, else by tokens"
    )
    assert table.spans.ended_s.tolist() == [12, 25, 33]
    assert table.spans.prompt_tokens.tolist() == [100_000_000, 3, 7]
    assert table.spans.cached_tokens.tolist() == [0, 0, 2]
    assert table.spans.generated_tokens.tolist() == [1, 4, 5]
    assert [table.label_sets[k] for k in table.label_of] == [
        {"user": "ann"},
        {},
        {"role": "decode", "user": "ann"},
    ]
    assert table.untimed.tolist() == [False, True, False]
    assert table.only_role is None


def test_requests_without_permission_name_the_cause(source):
    write(source.folder, ("r", [ServedRequest("a", 1.0, 2.0, 3, 1)]))
    path = source.folder / REQUESTS_FILE
    source.folder.chmod(0)
    try:
        with unprivileged(), pytest.raises(FetchError) as raised:
            read_stored_requests(source, "r")
    finally:
        source.folder.chmod(0o700)

    assert str(raised.value).startswith(f"cannot read {path}: ")
    assert "permissions" in str(raised.value)


def test_requests_of_one_role_have_it(source):
    write(source.folder, ("r", [ServedRequest("a", 1.0, 2.0, 3, 1, role="prefill")]))

    assert read_stored_requests(source, "r").only_role == "prefill"


def test_label_with_the_name_role_is_no_role(source):
    labelled = ServedRequest("a", 1.0, 2.0, 3, 1, labels={"role": "decode"})
    both = ServedRequest("b", 1.0, 2.0, 3, 1, labels={"role": "decode"}, role="prefill")
    write(source.folder, ("ordinary", [labelled]), ("prefill", [both]))

    ordinary, prefill = (read_stored_requests(source, run_id) for run_id in ("ordinary", "prefill"))

    assert (ordinary.only_role, list(ordinary.label_sets)) == (None, [{"role": "decode"}])
    assert (prefill.only_role, list(prefill.label_sets)) == ("prefill", [{"role": "prefill"}])


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "no requests of run r at .*; report them to the exporter, or give --requests FILE"),
        ([("r", b"damaged")], f"cannot read .*{REQUESTS_FILE}: a batch of requests is damaged"),
    ],
)
def test_missing_or_damaged_requests_are_named(source, batches, message):
    write(source.folder, *batches)

    with pytest.raises(FetchError, match=message):
        read_stored_requests(source, "r")


def test_time_without_a_start_begins_at_zero_for_the_run_api(source):
    """The run API takes no infinite time."""
    body = json.dumps({"batches": [], "next": None}).encode()
    with (
        http_server(lambda _path, _parameters: Reply(200, body)) as (address, received),
        closing(PrometheusSource(f"http://{address}")) as exporter,
        pytest.raises(FetchError, match="no requests of run r"),
    ):
        read_stored_requests(exporter, "r", (-math.inf, 1_000.0))

    assert received.parameters[-1]["start"] == "0.000"


def test_run_that_an_exporter_does_not_know_is_named():
    body = json.dumps(
        {"detail": "run_id: no run 'r'; the latest runs are: none; see GET /api/v1/runs"}
    ).encode()
    with (
        http_server(lambda _path, _parameters: Reply(404, body)) as (address, _),
        closing(PrometheusSource(f"http://{address}")) as exporter,
        pytest.raises(FetchError, match=r"^no run 'r' at .*; see: analyzer runs$"),
    ):
        read_stored_requests(exporter, "r")


def test_history_without_requests_names_the_remedy(source):
    with pytest.raises(
        FetchError, match=f"{REQUESTS_FILE} does not exist; report them to the exporter, or give"
    ):
        read_stored_requests(source, "r")


def test_prometheus_has_samples_but_no_requests(call, fleet_addresses):
    for address in fleet_addresses.values():
        code, _, err = call("requests", "--run-id", "r", "--source", address)

        assert code == 1
        assert (
            "stores samples, but no requests; give --requests FILE, or --source with the exporter"
            in err
        )
        assert len(err.strip().splitlines()) == 1


def test_time_range_without_a_file_is_refused(call, steady_history):
    code, _, err = call("requests", "--start", "-2h", "--source", steady_history)

    assert code == 2
    assert "a time range needs --requests" in " ".join(err.replace("│", " ").split())
