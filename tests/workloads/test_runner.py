import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.run_api import RunApi, serving
from tests.waiting import eventually
from tests.workloads.conftest import Exporter

_SAYS_EACH_SIGNAL = """
import os, signal, sys, time
got = []
def on(number, frame):
    got.append(number)
    os.write(1, f"got {signal.Signals(number).name}\\n".encode())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, on)
print("ready", flush=True)
while not got:
    time.sleep(0.01)
time.sleep(0.5)
sys.exit(7)
"""


@pytest.mark.parametrize(("code", "outcome"), [(0, "ok"), (3, "failed")])
def test_the_exit_code_is_passed_on_and_decides_the_outcome(exporter, code, outcome):
    done = exporter.run("sh", "-c", f"exit {code}")

    assert done.returncode == code
    assert exporter.api.only_run.outcome == outcome


def test_a_job_killed_by_a_signal_is_interrupted_and_exits_as_a_shell_would_say_it(exporter):
    done = exporter.run("sh", "-c", "kill -TERM $$")

    assert done.returncode == 128 + signal.SIGTERM
    assert exporter.api.only_run.outcome == "interrupted"


def test_a_command_that_does_not_exist_is_a_failed_run_and_127(exporter):
    done = exporter.run("no-such-command")

    assert done.returncode == 127
    assert "no-such-command: command not found" in done.stderr
    assert exporter.api.only_run.outcome == "failed"


def test_a_file_that_is_not_executable_is_a_failed_run_and_126(exporter, write):
    done = exporter.run(write("print()"))

    assert done.returncode == 126
    assert "cannot be executed: Permission denied" in done.stderr
    assert exporter.api.only_run.outcome == "failed"


def test_the_job_is_told_its_run_and_the_exporter(exporter):
    done = exporter.run("sh", "-c", "echo $WATTLINE_RUN_ID $WATTLINE_EXPORTER")

    assert done.stdout.split() == [exporter.api.only_run.run_id, exporter.address]


def test_runner_and_job_are_both_registered_as_processes_of_the_run(exporter, tmp_path):
    with exporter.start("-m", "workloads", "run", "sh", "-c", f"echo $PPID $$; {_until(tmp_path)}") as process:
        own = [int(pid) for pid in process.stdout.readline().split()]
        eventually(lambda: len(exporter.api.pids[exporter.api.only_run.run_id]) == 2)
        (tmp_path / "go").touch()

    assert exporter.api.pids[exporter.api.only_run.run_id] == own


def test_the_control_group_that_the_environment_names_is_the_runs(exporter):
    done = exporter.start("-m", "workloads", "run", "true", WATTLINE_CGROUP="pod:1234")
    assert done.wait(60) == 0, done.stderr.read()
    done.stdout.close(), done.stderr.close()

    posted = exporter.api.bodies("/processes")
    assert {"cgroup": "pod:1234"} in posted
    assert {body["pid_namespace"] for body in posted if "pids" in body} == {Path("/proc/self/ns/pid").stat().st_ino}


@pytest.mark.parametrize("group", ["pod:1234", ""])
def test_numbers_that_mean_nothing_outside_are_no_matter_where_the_control_group_is_known(exporter, write, group):
    """Neither for the runner, nor for its job, nor for the client in it."""
    exporter.api.refuses_pids = True
    script = write("from workloads import client\nwith client.run('train'):\n    pass\n")
    with exporter.start("-m", "workloads", "run", sys.executable, script, WATTLINE_CGROUP=group) as process:
        _, said = process.communicate(timeout=60)

    assert process.returncode == 0, said
    assert said.count("is not seen as part of") == (0 if group else 3)


def test_the_last_line_on_stderr_says_how_to_see_the_run(exporter):
    done = exporter.run("true")

    run_id = exporter.api.only_run.run_id
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].endswith(f"analyzer report --run-id {run_id} --source {exporter.address}")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_a_signal_to_the_runner_alone_reaches_the_job_once(exporter, write, name):
    with _started(exporter, write(_SAYS_EACH_SIGNAL)) as process:
        process.send_signal(signal.Signals[name])
        out, _ = process.communicate(timeout=30)

    assert out.splitlines() == [f"got {name}"]
    assert process.returncode == 7
    assert exporter.api.only_run.outcome == "failed"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_the_whole_group_as_by_control_c_reaches_the_job_once(exporter, write, name):
    with _started(exporter, write(_SAYS_EACH_SIGNAL)) as process:
        os.killpg(process.pid, signal.Signals[name])
        out, _ = process.communicate(timeout=30)

    assert out.splitlines() == [f"got {name}"]
    assert process.returncode == 7


def test_control_c_ends_a_python_job_and_the_run_as_interrupted(exporter, write):
    with _started(exporter, write("import time; print('ready', flush=True); time.sleep(60)")) as process:
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=30)

    assert process.returncode == 128 + signal.SIGINT
    assert exporter.api.only_run.outcome == "interrupted"


def test_a_signal_that_is_ignored_as_by_nohup_stays_ignored(exporter, write):
    script = write("import signal; print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)")
    done = exporter.python("-c", _WITH_SIGHUP_IGNORED, sys.executable, "-m", "workloads", "run", sys.executable, script)

    assert done.stdout.strip() == "True"


_WITH_SIGHUP_IGNORED = """
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_the_sentinel_leaves_with_a_runner_that_is_killed(exporter, write, tmp_path):
    script = write("import time; print('ready', flush=True); time.sleep(60)")
    with _started(exporter, script, TMPDIR=str(tmp_path)) as process:
        children = _children(process.pid)
        process.kill()
        process.wait()
        try:
            assert len(children) == 2
            eventually(lambda: sum(Path(f"/proc/{pid}").exists() for pid in children) == 1)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_job_outlives_its_exporter_and_its_exit_code_is_passed_on(tmp_path):
    api = RunApi()
    with serving(api) as address:
        exporter = Exporter(api, address)
        process = exporter.start("-m", "workloads", "run", "sh", "-c", f"echo ready; {_until(tmp_path)}; exit 3")
        assert process.stdout.readline() == "ready\n"
    (tmp_path / "go").touch()
    with process:
        _, err = process.communicate(timeout=60)

    assert process.returncode == 3
    assert "could not be ended: no exporter answers" in err


def test_an_exporter_that_is_restarted_while_the_job_ends_is_waited_for(tmp_path):
    api = RunApi()
    with serving(api) as address:
        exporter = Exporter(api, address)
        process = exporter.start("-m", "workloads", "run", "sh", "-c", f"echo ready; {_until(tmp_path)}")
        assert process.stdout.readline() == "ready\n"
        eventually(lambda: len(api.bodies("/processes")) == 2)
    (tmp_path / "go").touch()
    time.sleep(1)
    with serving(api, int(address.rpartition(":")[2])), process:
        process.communicate(timeout=60)

    assert process.returncode == 0
    assert api.only_run.outcome == "ok"


def test_an_exporter_that_was_named_and_does_not_answer_is_an_error_before_the_job_starts(exporter, nowhere):
    done = exporter.run("touch", "started", WATTLINE_EXPORTER=nowhere)

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"no exporter answers at {nowhere}: Connection refused (WATTLINE_EXPORTER)" in done.stderr


def test_the_option_for_the_exporter_wins_over_the_environment(exporter, nowhere):
    done = exporter.workloads("run", "--exporter", exporter.address, "true", WATTLINE_EXPORTER=nowhere)

    assert done.returncode == 0
    assert exporter.api.only_run.outcome == "ok"


def test_what_the_exporter_refuses_is_said_in_one_line(exporter):
    done = exporter.workloads("run", "--gpus", "GPU-1234", "true")

    assert done.returncode == 1
    assert done.stderr == "wattline: gpus: there is no GPU GPU-1234 here\n"


def test_gpus_of_the_environment_that_the_exporter_does_not_know_stop_no_job(exporter):
    done = exporter.run("true", CUDA_VISIBLE_DEVICES="0")

    assert done.returncode == 0
    assert "there is no GPU 0 here" in done.stderr
    assert exporter.api.begun[exporter.api.only_run.run_id].gpus == []


def test_a_program_at_the_address_that_is_no_exporter_is_named(exporter):
    done = exporter.workloads("run", "--exporter", exporter.address + "/prefix", "true")

    assert done.returncode == 1
    assert "there is no /prefix/api/v1/runs" in done.stderr


def test_results_of_clients_in_the_job_come_with_its_end(exporter, write):
    script = write("from workloads import client\nwith client.run('x') as run:\n    run.result(loss=0.5)\n")
    exporter.run(sys.executable, script)

    assert exporter.api.only_run.results == {"loss": 0.5}


def test_more_results_than_a_run_can_have_take_no_other_along(exporter, write):
    script = write(
        "from workloads import client\n"
        "for process in 'ab':\n"
        "    with client.run('x') as run:\n"
        "        run.result(**{f'{process}{index}': index for index in range(40)})\n"
    )
    done = exporter.run(sys.executable, script)

    run = exporter.api.only_run
    assert (run.outcome, len(run.results), run.results["b23"]) == ("ok", 64, 23)
    assert "result b39 is left out: a run has 64 at most" in done.stderr


def test_a_run_that_has_ended_is_not_taken_for_a_new_one(exporter, tmp_path):
    exporter.workloads("run", "--run-id", "a", "true")
    done = exporter.workloads("run", "--run-id", "a", "--out", str(tmp_path), "true")

    assert done.returncode == 2
    assert "run a has ended already; give another --run-id" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_begun_twice_under_one_id_and_another_body_is_refused(exporter):
    exporter.workloads("run", "--run-id", "a", "true")
    done = exporter.workloads("run", "--run-id", "a", "--name", "other", "true")

    assert done.returncode == 1
    assert done.stderr == "wattline: run a was begun with another body\n"


def _until(folder: Path) -> str:
    """For a shell: goes on once there is a file `go` in the folder."""
    return f"until [ -e '{folder}/go' ]; do sleep 0.05; done"


def _started(exporter: Exporter, script: str, **environment: str) -> subprocess.Popen[str]:
    process = exporter.start("-m", "workloads", "run", sys.executable, script, **environment)
    assert process.stdout.readline() == "ready\n"
    # the job is registered only after signals are passed to it
    eventually(lambda: len(exporter.api.bodies("/processes")) == 2)
    return process


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_the_answer_of_another_version_is_an_error_and_not_a_traceback(exporter):
    exporter.api.answer = lambda *_: (201, json.loads('{"run_id": "a"}'))
    done = exporter.run("true")

    assert done.returncode == 1
    assert "install the same version of wattline for both" in done.stderr
    assert "Traceback" not in done.stderr
