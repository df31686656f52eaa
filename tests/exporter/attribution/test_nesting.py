"""Runs that have processes in common: which one has the load of a server, and which ones do other
work.
"""

import pytest

from wattline_exporter.attribution.nesting import (
    CLIENT_RANK,
    DISCOVERED_RANK,
    SERVER_RANK,
    RunFamilies,
)

SERVER, OTHER, TRAINING, JOB = 1, 2, 3, 4


def runs(families, pids, jobs=("job",)):
    ranks = {"user": DISCOVERED_RANK, "server": SERVER_RANK, "server-2": SERVER_RANK}
    return RunFamilies(
        {each: ranks.get(each, CLIENT_RANK) for each in families}, families, pids, jobs
    )


@pytest.mark.parametrize("outer", ["user", "server", "started"])
def test_load_of_a_job_is_that_of_the_run_that_reports_its_requests(outer):
    found = runs({outer: {SERVER, JOB}, "job": {SERVER, JOB}}, {outer: set(), "job": {SERVER, JOB}})

    assert found.of_reporters([outer])[outer] == {SERVER, JOB}
    assert not found.of_reporters([outer])["job"]
    assert found.inner(outer) == {"job"}


@pytest.mark.parametrize("outer", ["user", "started"])
def test_load_of_a_training_in_a_run_that_reports_is_its_own(outer):
    found = runs(
        {outer: {SERVER, TRAINING}, "training": {TRAINING}},
        {outer: {SERVER}, "training": {TRAINING}},
    )

    assert found.of_reporters([outer]) == {outer: {SERVER}, "training": {TRAINING}}


def test_load_of_a_server_named_by_a_client_is_that_of_the_run_of_the_server():
    found = runs({"server": {SERVER}, "eval": {SERVER}}, {"server": set(), "eval": {SERVER}})

    assert found.of_reporters(["server"]) == {"server": {SERVER}, "eval": set()}


@pytest.mark.parametrize(
    ("run_id", "other", "families", "pids", "is_same"),
    [
        ("server", "job", {"server": {1}, "job": {1, 4}}, {"job": {1, 4}}, True),
        ("started", "job", {"started": {1}, "job": {1, 4}}, {"job": {1, 4}}, True),
        ("job", "started", {"started": {1}, "job": {1, 4}}, {"job": {1, 4}}, True),
        ("server", "user", {"user": {1, 4}, "server": {1}}, {"user": {4}, "server": {1}}, True),
        ("server", "user", {"user": {1, 3}, "server": {1}}, {"user": {3}, "server": {1}}, False),
        ("server", "job", {"server": {1}, "job": {1, 3}}, {"job": {1, 3}}, False),
        (
            "started",
            "training",
            {"started": {1, 3}, "training": {3}},
            {"started": {1}, "training": {3}},
            False,
        ),
        ("server", "eval", {"server": {1}, "eval": {1}}, {"eval": {1}}, True),
    ],
)
def test_other_run_with_processes_in_common_does_other_work(run_id, other, families, pids, is_same):
    """Processes 1 to 3 are on GPUs; 4 is that of a job, which is not."""
    found = {
        (one, two): same
        for one, two, same in runs(families, pids).in_common({SERVER, OTHER, TRAINING})
    }

    assert found[run_id, other] == is_same


def test_runs_without_a_common_process_on_gpus_have_no_work_in_common():
    families = {"server": {SERVER, JOB}, "server-2": {OTHER}, "job": {JOB}}

    assert not list(runs(families, families).in_common({SERVER, OTHER}))
