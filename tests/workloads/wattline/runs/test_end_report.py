"""Ends of runs while the exporter is away or hangs."""

import os

import pytest

import wattline
from tests.fakes.run_api import ProblemError, RunApi, run_api_server
from tests.polling import eventually
from wattline.runs import base_run


@pytest.fixture
def api():
    return RunApi(("GPU-0",))


def port_of(address):
    return int(address.rpartition(":")[2])


def test_end_exporter_away_is_sent_later_with_its_time(api, capfd):
    with run_api_server(api) as address:
        run = wattline.start("train", gpus="0", exporter=address)
    run.work(steps=7)
    result = run.end()
    ended_at = run._end._ended_at
    assert (result.energy_joules, api.only_run.state) == (None, "running")
    assert (
        f"cannot end run {run.run_id} now: cannot reach an exporter at {address}: "
        in capfd.readouterr().err
    )

    with run_api_server(api, port_of(address)):
        assert run.end().energy_joules == 100.0
    assert (api.only_run.ended_at, api.only_run.work, api.only_run.outcome) == (
        ended_at,
        {"steps": 7},
        "ok",
    )


def test_end_exporter_away_is_repeated_without_a_further_call(api):
    with run_api_server(api) as address:
        run = wattline.start("train", gpus="0", exporter=address)
    run.end("failed")
    with run_api_server(api, port_of(address)):
        eventually(lambda: api.only_run.state == "ended")
        eventually(lambda: run.energy_joules == 100.0)
    assert api.only_run.outcome == "failed"


def test_end_of_unknown_run_is_not_repeated(api, capfd):
    with run_api_server(api) as address:
        run = wattline.start("train", exporter=address)
        api.runs.clear()
        run.end()
        run.end()
    assert len(api.bodies("/end")) == 1
    assert f"cannot end run {run.run_id}: there is no " in capfd.readouterr().err


def test_begin_without_an_answer_leaves_no_run_open(api, monkeypatch, capfd):
    monkeypatch.setattr(base_run, "_BEGIN_WITHIN_S", 0.1)
    with run_api_server(api) as address:
        api.responds.clear()
        run = wattline.start("train", exporter=address)
        assert run.run_id is None
        assert "this run is not measured: " in capfd.readouterr().err
        api.responds.set()
        eventually(lambda: api.runs and api.only_run.state == "ended")
    assert api.only_run.outcome == "interrupted"
    assert api.pids[api.only_run.run_id] == [os.getpid()], "it would also end with the process"
    run.end()


class OlderApi(RunApi):
    """Exporter without the field `ended_at`."""

    def _change(self, run_id, action, body):
        if "ended_at" in body:
            raise ProblemError(
                422, "ended_at: unknown field; the fields are outcome, work, results"
            )
        super()._change(run_id, action, body)


def test_end_older_exporter_ends_the_run_without_the_time():
    api = OlderApi()
    with run_api_server(api) as address:
        wattline.start("train", exporter=address).end()
    assert api.only_run.state == "ended"
