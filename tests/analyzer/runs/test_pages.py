"""Pages of runs from an exporter's run API, real servers and a history."""

import json
from dataclasses import replace

import pytest

from tests.analyzer.loopback import Reply, http_server
from tests.analyzer.small_fleet import BEGIN_S
from tests.workloads.wattline.contract.test_run import RUN
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.runs import pages

ENDED = [
    replace(RUN, run_id=f"r-{n}", started_at=1_000.0 * n, ended_at=1_000.0 * n + 60)
    for n in range(1, 6)
]


def run_api(runs):
    """Answer as the run API of an exporter does; `runs` are the newest first."""

    def respond(path, parameters):
        if path != "/api/v1/runs":
            return Reply(404, b"none", "text/plain")
        chosen = [run for run in runs if "state" not in parameters or run.ended_at is None]
        ids = [run.run_id for run in chosen]
        first = ids.index(parameters["before"]) + 1 if "before" in parameters else 0
        page = chosen[first : first + int(parameters["limit"])]
        return Reply(200, json.dumps([run.to_json() for run in page]).encode())

    return respond


def listed(since_s, limit, runs=ENDED):
    """Return the ids of the listed runs of an exporter, whether there are more, and the number of
    requests: one for those that are running, and one for each page.
    """
    with http_server(run_api(runs[::-1])) as (address, requests):
        source = PrometheusSource(f"http://{address}")
        found = pages.list_runs(source, since_s, limit)
        source.close()
    return [one.run_id for one in found.entries], found.is_cut, len(requests.paths)


def test_limited_list_of_an_exporter_is_one_page_with_one_more():
    assert listed(1e12, 2) == (["r-5", "r-4"], True, 2)


def test_limited_list_of_all_runs_of_an_exporter_is_not_cut():
    assert listed(1e12, 5) == (["r-5", "r-4", "r-3", "r-2", "r-1"], False, 2)


def test_list_of_an_exporter_leaves_out_runs_that_ended_earlier():
    assert listed(1.0, None) == ([], False, 2)


def test_running_run_behind_a_page_of_runs_that_ended_earlier_is_listed():
    service = replace(RUN, run_id="service", started_at=1.0, ended_at=None, outcome=None)

    assert listed(1.0, 2, [service, *ENDED]) == (["service"], False, 2)


def test_lists_of_servers_and_history_agree(call, fleet_addresses, fleet_history):
    sources = {**fleet_addresses, "history": str(fleet_history)}
    found = {}
    for name, source in sources.items():
        code, stdout, stderr = call(
            "runs", "--source", source, "--since", f"{BEGIN_S:.0f}", "--format", "json"
        )
        assert code == 0, stderr
        found[name] = json.loads(stdout)

    assert found["history"]
    by_id = {
        name: {run["run_id"]: run["gpu_energy_joules"] for run in runs}
        for name, runs in found.items()
    }
    for name in fleet_addresses:
        assert by_id[name] == pytest.approx(by_id["history"])


def test_limited_list_of_a_server_is_the_newest_of_all(call, fleet_addresses):
    for source in fleet_addresses.values():
        options = ("--source", source, "--since", f"{BEGIN_S:.0f}", "--format", "json")
        every = json.loads(call("runs", *options)[1])
        code, stdout, stderr = call("runs", *options, "--limit", "3")

        assert code == 0
        assert json.loads(stdout) == every[:3]
        assert "showing the newest 3 runs" in stderr
