import itertools
import tempfile
import time

from wattline.client import ranks

_SCRIPT = """
import os, pathlib, time
import wattline
joined = pathlib.Path(os.environ["JOINED"])
time.sleep(float(os.environ.get("WAIT", "0")))
with wattline.run("train") as run:
    run.work(samples=int(os.environ["RANK"]) + 1)
    run.result(rank=int(os.environ["RANK"]))
    (joined / os.environ["RANK"]).touch()
    while len(list(joined.iterdir())) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)
    time.sleep(float(os.environ.get("STAY", "0")))
"""
_MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}


def test_ranks_first_starts_run_and_others_join(exporter, write):
    _launch(exporter, write(_SCRIPT), [{}, {"WAIT": "0.1"}, {}, {}])

    run = exporter.api.only_run
    assert run.work == {"samples": 1 + 2 + 3 + 4}
    assert len(exporter.api.totals[run.run_id]) == 4
    assert len(exporter.api.pids[run.run_id]) == 4
    assert len(exporter.api.bodies("/end")) == 1
    assert (run.outcome, run.results) == ("ok", {"rank": 0})


def test_ranks_before_first_wait_for_its_run(exporter, write):
    _launch(exporter, write(_SCRIPT), [{"WAIT": "0.7"}, {}])

    assert exporter.api.only_run.work == {"samples": 3}


def test_ranks_run_end_waits_for_last_work(exporter, write):
    _launch(exporter, write(_SCRIPT), [{"STAY": "0.8"}, {"STAY": "1.8"}, {"STAY": "1.2"}])

    assert exporter.api.only_run.work == {"samples": 6}


def test_ranks_second_job_with_same_identity_gets_second_run(exporter, write):
    script = write(_SCRIPT)
    _launch(exporter, script, [{}, {}])
    _launch(exporter, script, [{}, {}])

    first, second = exporter.api.runs.values()
    assert second.run_id == f"{first.run_id}-2"
    assert (first.work, second.work) == ({"samples": 3}, {"samples": 3})


def test_ranks_under_runner_join_runners_run(exporter, write):
    exporter.api.answer("POST", "/api/v1/runs", b'{"workload": "outer", "run_id": "outer"}')
    _launch(exporter, write(_SCRIPT), [{}, {}], WATTLINE_RUN_ID="outer")

    assert exporter.api.only_run.state == "running"
    assert exporter.api.only_run.work == {"samples": 3}


def test_ranks_without_exporter_only_first_logs(exporter, write, closed_address):
    first, second = _launch(exporter, write(_SCRIPT), [{}, {}], WATTLINE_EXPORTER=closed_address)

    assert "this run is not measured" in first
    assert second == ""


def test_is_node_leader_without_local_rank_uses_rank():
    assert ranks.is_node_leader({"RANK": "0"})
    assert not ranks.is_node_leader({"RANK": "8"})
    assert ranks.is_node_leader({"RANK": "8", "LOCAL_RANK": "0"})
    assert not ranks.is_node_leader({"RANK": "8", "LOCAL_RANK": "1"})


def test_candidate_run_ids_equal_per_job_and_differ_between_jobs():
    def first(workload="train", ordinal=1, **environ):
        return next(ranks.candidate_run_ids(environ, workload, ordinal))

    assert first(SLURM_JOB_ID="7", RANK="0") == first(SLURM_JOB_ID="7", RANK="9")
    assert (
        len(
            {
                first(SLURM_JOB_ID="7"),
                first(SLURM_JOB_ID="8"),
                first("eval"),
                first(ordinal=2),
                first(),
            }
        )
        == 5
    )


def test_candidate_run_ids_after_first_are_numbered():
    ids = list(itertools.islice(ranks.candidate_run_ids({}, "my train/1", 1), 3))

    assert ids == [ids[0], f"{ids[0]}-2", f"{ids[0]}-3"]
    assert ids[0].startswith("my-train-1-")


def test_process_started_at_is_recent():
    assert 0 < time.time() - ranks.process_started_at() < 3_600


def _launch(exporter, script, each, **environment):
    """Start one process per rank at once, which leave the run after all have joined it; return the
    stderr of each.
    """
    with tempfile.TemporaryDirectory() as joined:
        job = {**_MASTER, **environment, "JOINED": joined, "WORLD_SIZE": str(len(each))}
        processes = [
            exporter.start(script, **job, RANK=str(rank), LOCAL_RANK=str(rank), **own)
            for rank, own in enumerate(each)
        ]
        errors = []
        for process in processes:
            with process:
                errors.append(process.communicate(timeout=60)[1])
            assert process.returncode == 0
    return errors
