"""Runs with a closed or full stdout or stderr."""

import subprocess
import sys

import pytest

from tests.workloads.plans.plan_files import read_journal, write_file

PLAN = """\
name: shown
runs:
  - {command: [sh, -c, echo hello], repeats: 2}
"""


def shell(exporter, script, *arguments):
    """Run a script with the command as "$@"; a pipe returns the exit code of its first part."""
    piped = script.replace("| true", "| { sleep 0.1; true; }")
    return subprocess.run(
        [
            "bash",
            "-c",
            f"set -o pipefail; {piped}",
            "bash",
            sys.executable,
            "-m",
            "wattline_workloads",
            *arguments,
        ],
        env=exporter.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("script", ['"$@" 2>/dev/full', '"$@" 2>&1 | true', '"$@" 2>&-'])
def test_run_unwritable_stderr_ends_run_and_keeps_exit_code(exporter, script, tmp_path):
    done = shell(
        exporter,
        script,
        "run",
        "--out",
        str(tmp_path),
        "--run-id",
        "mute",
        "--",
        "sh",
        "-c",
        "exit 3",
    )

    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert exporter.api.only_run.outcome == "failed"
    assert (tmp_path / "mute" / "metrics.yml").exists()


@pytest.mark.parametrize(
    "script", ['"$1" -c "$0" 2>/dev/full', '"$1" -c "$0" 2>&1 | true', '"$1" -c "$0" 2>&-']
)
def test_log_message_unwritable_stderr_does_not_fail(script):
    program = "from wattline.client.messages import log_message as log; log('first'); log('second')"
    command = ["bash", "-c", f"set -o pipefail; {script}", program, sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("end", "reason"), [(">/dev/full", "No space left on device"), ("| true", "Broken pipe")]
)
def test_plan_unwritable_stdout_makes_all_runs(exporter, tmp_path, end, reason):
    plan = write_file(tmp_path, PLAN)
    done = shell(
        exporter, f'"$@" {end}', "plan", str(plan), "--no-live", "--out", str(tmp_path / "results")
    )

    assert done.returncode == 0, done.stderr
    assert [line["outcome"] for line in read_journal(tmp_path / "results")] == ["ok", "ok"]
    message = (
        f"wattline: cannot print the jobs' output: {reason}; see output.log in each run's folder\n"
    )
    assert done.stderr.count(message) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [["list"], ["job", "sgemm", "--help"]])
def test_stdout_full_disk_is_one_line_error(exporter, options):
    done = shell(exporter, '"$@" >/dev/full', *options)

    assert done.returncode == 1
    assert done.stderr == (
        "wattline: cannot write to stdout: No space left on device; free disk space or redirect "
        "the output\n"
    )


def test_run_folder_full_disk_leaves_no_partial_metrics(exporter, tmp_path):
    done = shell(
        exporter,
        'ulimit -f 0; "$@"',
        "run",
        "--out",
        str(tmp_path),
        "--run-id",
        "r",
        "--",
        "sh",
        "-c",
        "exit 3",
    )

    assert done.returncode == 3
    assert exporter.api.only_run.outcome == "failed"
    assert (
        f"wattline: cannot write {tmp_path}/r/metrics.yml: File too large; the exporter still has "
        "the run\n" in done.stderr
    )
    assert not (tmp_path / "r" / "metrics.yml").exists()
    assert "Traceback" not in done.stderr


def test_run_closed_stderr_keeps_stdout_of_job(exporter):
    done = shell(exporter, '"$@" 2>&-', "run", "--", "echo", "of the job")

    assert (done.returncode, done.stdout) == (0, "of the job\n")
