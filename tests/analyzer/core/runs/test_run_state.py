"""State of a run and its requests at exporters and other servers."""

import json

import pytest

from tests.analyzer.loopback import Reply, http_server
from wattline.contract.run import Run
from wattline_analyzer.core.runs.run_state import is_known_as_open, reported_requests
from wattline_analyzer.core.sources.prometheus import PrometheusSource

RUN, REQUESTS = "/api/v1/runs/a", "/api/v1/runs/a/requests"


def run(state):
    return Run(run_id="a", workload="w", state=state, started_at=0.0, duration_s=1.0).to_json()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({RUN: run("running"), REQUESTS: {"requests": [{"id": "r"}]}}, (True, "requests")),
        ({RUN: run("ended"), REQUESTS: {"requests": []}}, (False, "")),
        ({RUN: ["no run"]}, (False, "")),
        ({RUN: {"state": "running"}}, (False, "")),
        ({}, (False, "")),
    ],
)
def test_run_state_of_a_server_is_that_of_its_run_api(answers, expected):
    def respond(path, _):
        return (
            Reply(200, json.dumps(answers[path]).encode())
            if path in answers
            else Reply(404, b"<html>", "text/html")
        )

    with http_server(respond) as (address, _):
        source = PrometheusSource(f"http://{address}")
        found = is_known_as_open(source, "a"), reported_requests(source, "a")
        source.close()

    assert found == expected
