"""A stdout or stderr that is full, or that nobody reads any more, loses no run."""

import subprocess
import sys

import pytest

from tests.workloads.plans import journal, write

PLAN = """\
name: shown
runs:
  - {command: [sh, -c, echo hello], repeats: 2}
"""


def shell(exporter, script, *arguments):
    """Of `sh`, with the arguments as "$@"; a pipe's exit code is that of its first part."""
    piped = script.replace("| true", "| { sleep 0.1; true; }")
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {piped}", "bash", sys.executable, "-m", "workloads", *arguments],
        env=exporter.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("script", ['"$@" 2>/dev/full', '"$@" 2>&1 | true', '"$@" 2>&-'])
def test_a_run_whose_stderr_takes_nothing_is_ended_and_keeps_its_exit_code(exporter, script, tmp_path):
    done = shell(exporter, script, "run", "--out", str(tmp_path), "--run-id", "mute", "--", "sh", "-c", "exit 3")

    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert exporter.api.only_run.outcome == "failed"
    assert (tmp_path / "mute" / "metrics.yml").exists()


@pytest.mark.parametrize("script", ['"$1" -c "$0" 2>/dev/full', '"$1" -c "$0" 2>&1 | true', '"$1" -c "$0" 2>&-'])
def test_what_a_job_cannot_say_does_not_fail_it(script):
    program = "from workloads.client.messages import say; say('first'); say('second')"
    command = ["bash", "-c", f"set -o pipefail; {script}", program, sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("end", "reason"), [(">/dev/full", "No space left on device"), ("| true", "Broken pipe")])
def test_a_plan_whose_output_nobody_takes_makes_all_of_its_runs(exporter, tmp_path, end, reason):
    plan = write(tmp_path, PLAN)
    done = shell(exporter, f'"$@" {end}', "plan", str(plan), "--no-live", "--out", str(tmp_path / "results"))

    assert done.returncode == 0, done.stderr
    assert [line["outcome"] for line in journal(tmp_path / "results")] == ["ok", "ok"]
    assert done.stderr.count(f"the jobs' output cannot be shown here: {reason}") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [["list"], ["job", "sgemm", "--help"]])
def test_a_full_disk_is_said_in_a_line(exporter, options):
    done = shell(exporter, '"$@" >/dev/full', *options)

    assert done.returncode == 1
    assert done.stderr == "wattline: cannot write: No space left on device; make room, or send the output elsewhere\n"


def test_a_run_whose_folder_has_no_room_goes_on_and_leaves_no_half_of_an_account(exporter, tmp_path):
    done = shell(
        exporter, 'ulimit -f 0; "$@"', "run", "--out", str(tmp_path), "--run-id", "r", "--", "sh", "-c", "exit 3"
    )

    assert done.returncode == 3
    assert exporter.api.only_run.outcome == "failed"
    assert "metrics.yml cannot be written: File too large; the exporter has the run all the same" in done.stderr
    assert not (tmp_path / "r" / "metrics.yml").exists()
    assert "Traceback" not in done.stderr


def test_a_closed_stderr_leaves_stdout_to_the_job(exporter):
    done = shell(exporter, '"$@" 2>&-', "run", "--", "echo", "of the job")

    assert (done.returncode, done.stdout) == (0, "of the job\n")
