"""Queries of a fleet at the same time."""

import threading

import pytest

from wattline_analyzer.core.sources.promql import InstantValue, QueryTooLargeError
from wattline_analyzer.usage.results import FleetClient, FleetRequest

REQUEST = FleetRequest(("model",), "idle_shared", 0.0, 3_600.0, rules=False)
TIMEOUT_S = 60


class PairServer:
    """Server that answers each query on `work` together with a second one, and refuses those of
    more than `most_ms`.
    """

    name = "server"

    def __init__(self, most_ms=3_600_000):
        self._most_ms = most_ms
        self._pair = threading.Barrier(2)
        self._counting = threading.Lock()
        self._open = 0
        self.most_open = 0

    def dialect(self):
        return "prometheus"

    def query(self, text, at_s):
        if not text.startswith("work"):
            return []
        with self._counting:
            self._open += 1
            self.most_open = max(self._open, self.most_open)
        self._pair.wait(TIMEOUT_S)
        with self._counting:
            self._open -= 1
        if int(text.split("[")[1].split("ms")[0]) > self._most_ms:
            raise QueryTooLargeError("too many samples")
        return [InstantValue({"label_model": "m"}, 1.0)]


def test_fleet_client_sends_at_most_two_queries_at_a_time():
    server = PairServer()
    client = FleetClient(server, REQUEST, pytest.fail)

    answers = [client.values("work[3600000ms]") for _ in range(6)]

    assert [len(answer.result(TIMEOUT_S)) for answer in answers] == [1] * 6
    assert server.most_open == 2


def test_fleet_client_two_refusals_at_once_halve_the_window_once():
    messages = []
    client = FleetClient(PairServer(most_ms=1_800_000), REQUEST, messages.append)

    sums = [client.sums(lambda span: [(1.0, f"work{span.range}")], ()) for _ in range(2)]

    assert [one.result(TIMEOUT_S) for one in sums] == [{(("m",), ()): 2.0}] * 2
    assert client.spans == 2
    assert len(messages) == 1
