"""Results folder: journal, resumption after an interruption, and locking."""

import datetime as dt
import os
import signal

import psutil
import pytest

from tests.fakes.run_api import RunApi, run_api_server
from tests.polling import eventually
from tests.workloads.plans.plan_files import TWO_REPEATS, read_journal, run_plan, write_file
from tests.workloads.programs import Exporter
from wattline_workloads.plans.results import JournalEntry, ResultsFolder


def test_plan_killed_child_runner_leaves_no_job(exporter, tmp_path):
    """The job would load the GPU of the next run."""
    text = (
        "name: two\nruns:\n  - command: [sh, -c, 'sleep 600 & echo $! > pid; wait']\n  - "
        "command: ['true']\n"
    )
    plan, results = write_file(tmp_path, text), tmp_path / "results"
    process = exporter.start(
        "-m", "wattline_workloads", "plan", str(plan), "--out", str(results), cwd=tmp_path
    )
    with process:
        pid = int(
            eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        )
        eventually(lambda: exporter.api.pids and len(next(iter(exporter.api.pids.values()))) == 2)
        runner = next(iter(exporter.api.pids.values()))[0]
        os.kill(runner, signal.SIGKILL)
        process.communicate(timeout=60)

    assert [(line["outcome"], line["cut_off"]) for line in read_journal(results)] == [
        ("interrupted", True),
        ("ok", False),
    ]
    eventually(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    )


def test_results_truncated_journal_repeats_incomplete_step(tmp_path):
    def entry(step, tenant, attempt=1):
        return JournalEntry(
            *(
                step,
                attempt,
                f"{step}{tenant}{attempt}",
                "two",
                "measure",
                1,
                tenant,
                "ok",
                0,
                0.0,
                1.0,
            ),
            cut_off=False,
            folder="",
        )

    with ResultsFolder.create(tmp_path / "r", "two", b"", dt.datetime.now(dt.UTC)) as results:
        results.append([entry(1, "a"), entry(1, "b"), entry(2, "a"), entry(2, "b")])
    path = tmp_path / "r" / "runs.jsonl"
    path.write_text(path.read_text()[:-40])
    with ResultsFolder.resume(tmp_path / "r", b"") as results:
        assert results.steps_done() == {1}
        assert results.attempts(2) == 1
        results.append([entry(2, "a", 2), entry(2, "b", 2)])
    with ResultsFolder.resume(tmp_path / "r", b"") as results:
        assert results.steps_done() == {1, 2}
        assert [each.run_id for each in results.entries] == ["1a1", "1b1", "2a1", "2a2", "2b2"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_plan_interrupted_is_resumed_at_open_step(exporter, tmp_path, name):
    text = (
        "name: three\nruns:\n  - {name: a, job: sleep, options: {duration: 0.1}}\n"
        "  - {name: b, command: [sh, -c, 'test -e go || exec sleep 60']}\n"
        "  - {name: c, job: sleep, options: {duration: 0.1}}\n"
    )
    plan, results = write_file(tmp_path, text), tmp_path / "results"
    process = exporter.start(
        "-m", "wattline_workloads", "plan", str(plan), "--out", str(results), cwd=tmp_path
    )
    with process:
        eventually(
            lambda: len(exporter.api.pids) == 2 and len(list(exporter.api.pids.values())[1]) == 2
        )
        process.send_signal(signal.Signals[name])
        _, stderr = process.communicate(timeout=60)

    assert process.returncode in {-signal.Signals[name], 128 + signal.Signals[name]}
    assert (
        f"2 of 3 steps remain; continue with: workloads plan {results}/plan.yaml --resume {results}"
        in stderr
    )
    assert [(line["case"], line["outcome"], line["cut_off"]) for line in read_journal(results)] == [
        ("a", "ok", False),
        ("b", "interrupted", True),
    ]
    assert [run.outcome for run in exporter.api.runs.values()] == ["ok", "interrupted"]

    (tmp_path / "go").touch()
    resumed = exporter.python(
        "-m", "wattline_workloads", "plan", str(plan), "--resume", str(results), cwd=tmp_path
    )
    lines = read_journal(results)
    assert [(line["case"], line["attempt"], line["outcome"]) for line in lines] == [
        ("a", 1, "ok"),
        ("b", 1, "interrupted"),
        ("b", 2, "ok"),
        ("c", 1, "ok"),
    ]
    assert len({line["run_id"] for line in lines}) == 4
    assert all((results / line["folder"] / "output.log").exists() for line in lines)
    assert "steps remain" not in resumed.stderr


def test_plan_killed_runner_ends_run_and_is_resumed(exporter, tmp_path):
    text = "name: two\nruns:\n  - command: [sh, -c, 'test -e go || exec sleep 60']\n"
    plan, results = write_file(tmp_path, text), tmp_path / "results"
    process = exporter.start(
        "-m", "wattline_workloads", "plan", str(plan), "--out", str(results), cwd=tmp_path
    )
    with process:
        eventually(
            lambda: len(exporter.api.pids) == 1 and len(next(iter(exporter.api.pids.values()))) == 2
        )
        process.kill()
        process.wait(60)
        run_id = exporter.api.only_run.run_id
        eventually(lambda: exporter.api.runs[run_id].state == "ended")
        (tmp_path / "go").touch()
        done = exporter.python(
            "-m", "wattline_workloads", "plan", str(plan), "--resume", str(results), cwd=tmp_path
        )

    assert exporter.api.runs[run_id].outcome == "interrupted"
    assert done.returncode == 0, done.stderr
    assert [line["outcome"] for line in read_journal(results)] == ["ok"]
    assert (results / run_id / "events.jsonl").exists()


def test_plan_resume_with_running_attempt_fails(exporter, tmp_path):
    plan = write_file(tmp_path, TWO_REPEATS)
    with exporter.start(
        "-m", "wattline_workloads", "plan", str(plan), "--out", str(tmp_path / "results")
    ) as process:
        process.communicate(timeout=60)
    (tmp_path / "results" / "runs.jsonl").write_text("")
    run = next(iter(exporter.api.runs.values()))
    exporter.api.change(run.run_id, state="running")
    done = run_plan(exporter, plan, "--resume", str(tmp_path / "results"))

    assert done.returncode == 1
    assert (
        f"run {run.run_id} of an earlier attempt is still running; stop it, or wait for its end"
        in done.stderr
    )


def test_plan_second_runner_on_results_fails(exporter, tmp_path):
    plan, results = (
        write_file(tmp_path, "name: a\nruns: [{job: sleep, options: {duration: 60}}]\n"),
        tmp_path / "results",
    )
    with exporter.start(
        "-m", "wattline_workloads", "plan", str(plan), "--out", str(results)
    ) as first:
        eventually(lambda: exporter.api.runs)
        second = run_plan(exporter, plan, "--resume", str(results))
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)

    assert second.returncode == 1
    assert "another workloads plan uses" in second.stderr


def test_plan_resume_of_complete_plan_runs_nothing(exporter, tmp_path):
    plan = write_file(
        tmp_path,
        TWO_REPEATS.replace("repeats: 2", "repeats: 1") + "warm_up_runs: 1\nidle_seconds: 0.1\n",
    )
    run_plan(exporter, plan)
    count = len(exporter.api.runs)
    again = run_plan(exporter, plan, "--resume", str(tmp_path / "results"))

    phases = [run.labels.get("phase") for run in exporter.api.runs.values()]
    assert again.returncode == 0
    assert phases == ["idle", "warm-up", None, "idle"]
    assert len(exporter.api.runs) == count


def test_plan_resume_repeats_warm_up(exporter, tmp_path):
    plan = write_file(
        tmp_path,
        "name: warm\nwarm_up_runs: 1\nruns: [{command: [sh, -c, 'test -e go || kill -TERM $$']}]\n",
    )
    first = exporter.python(
        "-m", "wattline_workloads", "plan", str(plan), "--out", str(tmp_path / "r"), cwd=tmp_path
    )
    (tmp_path / "go").touch()
    done = exporter.python(
        "-m", "wattline_workloads", "plan", str(plan), "--resume", str(tmp_path / "r"), cwd=tmp_path
    )

    assert (first.returncode, done.returncode) == (1, 0)
    assert [(line["phase"], line["outcome"]) for line in read_journal(tmp_path / "r")] == [
        ("warm-up", "interrupted"),
        ("measure", "interrupted"),
        ("warm-up", "ok"),
        ("measure", "ok"),
    ]


def test_plan_lost_exporter_stops_and_leaves_steps_open(tmp_path):
    release_file, results = tmp_path / "go", tmp_path / "results"
    job = f"name: wait, command: [sh, -c, 'until [ -e {release_file} ]; do sleep 0.05; done']"
    plan = write_file(tmp_path, f"name: waits\nrepeats: 2\nruns: [{{{job}}}]\n")
    api = RunApi()
    with run_api_server(api) as address:
        process = Exporter(api, address).start(
            "-m", "wattline_workloads", "plan", str(plan), "--out", str(results)
        )
        eventually(lambda: api.pids and len(next(iter(api.pids.values()))) == 2)
    release_file.touch()
    with process:
        _, stderr = process.communicate(timeout=60)

    (line,) = read_journal(results)
    assert process.returncode == 1
    assert (line["outcome"], line["cut_off"]) == ("ok", True)
    assert line["note"] == "energy unknown: the end of the run did not reach the exporter"
    assert f"cannot reach an exporter at {address}" in stderr
    assert "2 of 2 steps remain" in stderr
