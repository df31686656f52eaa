"""Queries of `analyzer usage` to servers that refuse large ones."""

import json
import re
import threading
import urllib.request
from contextlib import closing
from urllib.parse import urlencode

import pytest

from tests.analyzer.loopback import Reply, http_server
from tests.analyzer.small_fleet import BEGIN_S, END_S
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.core.sources.promql import InstantServer
from wattline_analyzer.usage.facts import UsageRequest
from wattline_analyzer.usage.server import read_server

REQUEST = UsageRequest(("model",), "idle_shared", BEGIN_S, END_S)
TOO_LARGE = {
    "status": "error",
    "errorType": "execution",
    "error": "query processing would load too many samples into memory in query execution",
}


def refused():
    return Reply(422, json.dumps(TOO_LARGE).encode())


def read(address):
    with (
        closing(InstantServer(address)) as server,
        closing(PrometheusSource(address)) as raw,
    ):
        return read_server(server, raw, REQUEST)


@pytest.fixture
def forward(fleet_addresses):
    """Return a function that gives the response of a real server."""

    def respond(path, parameters):
        url = f"{fleet_addresses['victoria-metrics']}{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(url) as answer:
            return Reply(200, answer.read())

    return respond


def increases(readings):
    return {key: edges.increase for key, edges in readings.edges.items()}


def test_read_server_counts_falls_in_parts(fleet_addresses, forward):
    """The server accepts at most 100 minutes of a fall: two hours and one before are two parts."""
    spans = []

    def respond(path, parameters):
        found = re.search(r"resets\(.*\[(\d+)ms\]", parameters["query"])
        if found is None:
            return forward(path, parameters)
        spans.append(int(found[1]) / 60_000)
        return refused() if spans[-1] > 101 else forward(path, parameters)

    with http_server(respond) as (target, _):
        readings = read(f"http://{target}")

    assert sorted(set(spans)) == [90, 100, 180]
    assert increases(readings) == increases(read(fleet_addresses["victoria-metrics"]))


def test_read_server_asks_for_runs_in_smaller_pages(fleet_addresses, forward):
    """The server accepts at most two runs in a query of their series."""
    sizes = []

    def respond(path, parameters):
        found = re.search(r'wattline_run_info.*run_id=~"([^"]*)"', parameters["query"])
        if found is None:
            return forward(path, parameters)
        sizes.append(found[1].count("|") + 1)
        return refused() if sizes[-1] > 2 else forward(path, parameters)

    with http_server(respond) as (target, _):
        readings = read(f"http://{target}")

    assert max(sizes) > 2
    assert increases(readings) == increases(read(fleet_addresses["victoria-metrics"]))


def test_read_server_that_refuses_everything_is_one_error():
    with (
        http_server(lambda _path, _parameters: refused()) as (target, _),
        pytest.raises(FetchError, match=r"refuses a query: .* too many samples.*query.max-samples"),
    ):
        read(f"http://{target}")


def test_read_server_sends_at_most_two_queries_at_a_time(forward):
    counting = threading.Lock()
    open_queries = []
    most = []

    def respond(path, parameters):
        with counting:
            open_queries.append(path)
            most.append(len(open_queries))
        try:
            return forward(path, parameters)
        finally:
            with counting:
                open_queries.pop()

    with http_server(respond) as (target, _):
        read(f"http://{target}")

    assert max(most) <= 2


def test_read_server_number_of_queries_is_independent_of_the_window(fleet_addresses):
    counts = []
    for back_s in (3_600, 7_200):
        with (
            closing(InstantServer(fleet_addresses["prometheus"])) as server,
            closing(PrometheusSource(fleet_addresses["prometheus"])) as raw,
        ):
            request = UsageRequest(("user",), "idle_shared", END_S - back_s, END_S)
            read_server(server, raw, request)
            counts.append(server.query_count)

    assert max(counts) <= 20
