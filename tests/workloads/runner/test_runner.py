import json
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.run_api import RunApi, run_api_server
from tests.polling import eventually
from tests.workloads.programs import Exporter


@pytest.mark.parametrize(("code", "outcome"), [(0, "ok"), (3, "failed")])
def test_run_command_exit_code_sets_outcome(exporter, code, outcome):
    done = exporter.run("sh", "-c", f"exit {code}")

    assert done.returncode == code
    assert exporter.api.only_run.outcome == outcome


def test_run_command_killed_by_signal_is_interrupted(exporter):
    done = exporter.run("sh", "-c", "kill -TERM $$")

    assert done.returncode == 128 + signal.SIGTERM
    assert exporter.api.only_run.outcome == "interrupted"


def test_run_command_not_found_fails_with_127(exporter):
    done = exporter.run("no-such-command")

    assert done.returncode == 127
    assert done.stderr.splitlines() == [
        "wattline: cannot execute no-such-command: command not found; check its name and PATH",
        f"wattline: run {exporter.api.only_run.run_id} failed in 0.0 s: its command did not start",
    ]
    assert exporter.api.only_run.outcome == "failed"


def test_run_command_not_executable_fails_with_126(exporter, write):
    script = write("print()")
    done = exporter.run(script)

    assert done.returncode == 126
    assert (
        f"wattline: cannot execute {script}: Permission denied; check its mode and its #! line\n"
        in done.stderr
    )
    assert exporter.api.only_run.outcome == "failed"


def test_run_command_sets_run_id_and_exporter_of_job(exporter):
    done = exporter.run("sh", "-c", "echo $WATTLINE_RUN_ID $WATTLINE_EXPORTER")

    assert done.stdout.split() == [exporter.api.only_run.run_id, exporter.address]


def test_run_command_registers_runner_and_job(exporter, tmp_path):
    with exporter.start(
        "-m", "wattline_workloads", "run", "sh", "-c", f"echo $PPID $$; {_until(tmp_path)}"
    ) as process:
        own = [int(pid) for pid in process.stdout.readline().split()]
        eventually(lambda: len(exporter.api.pids[exporter.api.only_run.run_id]) == 2)
        (tmp_path / "go").touch()

    assert exporter.api.pids[exporter.api.only_run.run_id] == own


def test_run_command_registers_cgroup_of_environment(exporter):
    done = exporter.start("-m", "wattline_workloads", "run", "true", WATTLINE_CGROUP="pod:1234")
    assert done.wait(60) == 0, done.stderr.read()
    done.stdout.close(), done.stderr.close()

    posted = exporter.api.bodies("/processes")
    assert {"cgroup": "pod:1234"} in posted
    assert {body["pid_namespace"] for body in posted if "pids" in body} == {
        Path("/proc/self/ns/pid").stat().st_ino
    }


@pytest.mark.parametrize("group", ["pod:1234", ""])
def test_run_command_rejected_pids_are_logged_once_without_cgroup(exporter, write, group):
    """The runner, its job and the client in the job each register pids."""
    exporter.api.refuses_pids = True
    script = write("import wattline\nwith wattline.run('train'):\n    pass\n")
    with exporter.start(
        "-m", "wattline_workloads", "run", sys.executable, script, WATTLINE_CGROUP=group
    ) as process:
        _, stderr = process.communicate(timeout=60)

    assert process.returncode == 0, stderr
    assert stderr.count("cannot register process") == (0 if group else 1)


def test_run_command_last_line_names_report_command(exporter):
    exporter.api.known_gpus = ("GPU-0",)
    done = exporter.workloads("run", "--gpus", "0", "--", "true")

    run_id = exporter.api.only_run.run_id
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith(
        f"wattline report {run_id} --source {exporter.address}"
    )


def test_run_command_exporter_lost_keeps_exit_code(tmp_path):
    api = RunApi()
    with run_api_server(api) as address:
        exporter = Exporter(api, address)
        process = exporter.start(
            "-m", "wattline_workloads", "run", "sh", "-c", f"echo ready; {_until(tmp_path)}; exit 3"
        )
        assert process.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    with process:
        _, err = process.communicate(timeout=60)

    assert process.returncode == 3
    assert err.endswith(
        f"wattline: cannot end run {api.only_run.run_id}: cannot reach an exporter at {address}: "
        "Connection refused; "
        "after its restart the exporter ends the run as interrupted, at the last time that it "
        "found one of the run's "
        "processes\n"
    )


def test_run_command_end_waits_for_exporter_restart(tmp_path):
    api = RunApi()
    with run_api_server(api) as address:
        exporter = Exporter(api, address)
        process = exporter.start(
            "-m", "wattline_workloads", "run", "sh", "-c", f"echo ready; {_until(tmp_path)}"
        )
        assert process.stdout.readline() == "ready\n"
        eventually(lambda: len(api.bodies("/processes")) == 2)
    (tmp_path / "go").touch()
    time.sleep(1)
    with run_api_server(api, int(address.rpartition(":")[2])), process:
        process.communicate(timeout=60)

    assert process.returncode == 0
    assert api.only_run.outcome == "ok"


def test_run_command_configured_exporter_unreachable_fails(exporter, closed_address):
    done = exporter.run("touch", "started", WATTLINE_EXPORTER=closed_address)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr == (
        f"wattline: cannot reach an exporter at {closed_address}: Connection refused "
        "(WATTLINE_EXPORTER); "
        "start it on that host with exporter serve, or omit WATTLINE_EXPORTER to start one here\n"
    )


def test_run_command_exporter_option_overrides_environment(exporter, closed_address):
    done = exporter.workloads(
        "run", "--exporter", exporter.address, "true", WATTLINE_EXPORTER=closed_address
    )

    assert done.returncode == 0
    assert exporter.api.only_run.outcome == "ok"


def test_run_command_rejected_gpu_is_one_line_error(exporter):
    done = exporter.workloads("run", "--gpus", "GPU-1234", "true")

    assert done.returncode == 1
    assert done.stderr == "wattline: gpus: there is no GPU GPU-1234 here\n"


def test_run_command_unknown_gpu_of_environment_is_ignored(exporter):
    done = exporter.run("true", CUDA_VISIBLE_DEVICES="0")

    assert done.returncode == 0
    assert "there is no GPU 0 here" in done.stderr
    assert exporter.api.begun[exporter.api.only_run.run_id].gpus == []


def test_run_command_address_of_other_program_fails(exporter):
    done = exporter.workloads("run", "--exporter", exporter.address + "/prefix", "true")

    assert done.returncode == 1
    assert "there is no /prefix/api/v1/runs" in done.stderr


def test_run_command_end_reports_results_of_job(exporter, write):
    script = write("import wattline\nwith wattline.run('x') as run:\n    run.result(loss=0.5)\n")
    exporter.run(sys.executable, script)

    assert exporter.api.only_run.results == {"loss": 0.5}


def test_run_command_excess_results_keep_others(exporter, write):
    script = write(
        "import wattline\n"
        "for process in 'ab':\n"
        "    with wattline.run('x') as run:\n"
        "        run.result(**{f'{process}{index}': index for index in range(40)})\n"
    )
    done = exporter.run(sys.executable, script)

    run = exporter.api.only_run
    assert (run.outcome, len(run.results), run.results["b23"]) == ("ok", 64, 23)
    assert "cannot report result b39: a run has at most 64 results" in done.stderr


def test_run_command_id_of_ended_run_is_usage_error(exporter, tmp_path):
    exporter.workloads("run", "--run-id", "a", "true")
    done = exporter.workloads("run", "--run-id", "a", "--out", str(tmp_path), "true")

    assert done.returncode == 2
    assert "run a has already ended; set another --run-id" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_run_command_id_with_other_settings_is_rejected(exporter):
    exporter.workloads("run", "--run-id", "a", "true")
    done = exporter.workloads("run", "--run-id", "a", "--name", "other", "true")

    assert done.returncode == 1
    assert done.stderr == "wattline: run a was begun with another body\n"


def _until(folder: Path) -> str:
    """Return a shell command that waits for a file `go` in the folder."""
    return f"until [ -e '{folder}/go' ]; do sleep 0.05; done"


def test_run_command_unexpected_response_is_one_line_error(exporter):
    exporter.api.answer = lambda *_: (201, json.loads('{"run_id": "a"}'))
    done = exporter.run("true")

    assert done.returncode == 1
    assert "install the same version of wattline for both" in done.stderr
    assert "Traceback" not in done.stderr
