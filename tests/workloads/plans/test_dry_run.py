"""Output of `--dry-run`, which changes nothing."""

import pytest

from tests.workloads.plans.plan_files import run_plan, write_file

PLAN = """\
name: caps
labels: {site: lab}
pause_seconds: 2
idle_seconds: 8
gpus: [0]
cool_down: {at_most_seconds: 90}
runs:
  - job: sgemm
    options: {size: 64, duration: 20}
    sweep: {power_limit_watts: [300, 500]}
  - name: side
    mps: true
    tenants:
      - {name: a, job: sgemm, options: {duration: 40}}
      - {name: b, job: llm-train, options: {random: tiny}, background: true}
"""


def output_lines(done):
    assert (done.returncode, done.stderr) == (0, "")
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_dry_run_lists_runs_with_cap_labels_and_duration(exporter, tmp_path, closed_address):
    plan = write_file(tmp_path, PLAN)
    lines = output_lines(run_plan(exporter, plan, "--dry-run", "--exporter", closed_address))

    # 8 + 20 + 20 + 40 + 8 s of runs, and 5 pauses of 2 s
    assert lines[0] == "caps: 5 steps, 6 runs; about 106 s, plus loading, warm-up and cool-down"
    second = lines.index("2 sgemm power_limit_watts=300 repeat 1: about 20 s")
    assert lines[second + 1 : second + 4] == [
        "workloads job sgemm --size=64 --duration=20 on GPU 0",
        "labels: experiment=caps, site=lab, case=sgemm, power_limit_watts=300, repeat=1",
        "under a power limit of 300 W",
    ]
    tenants = lines.index("4 side repeat 1: about 40 s")
    assert lines[tenants + 1] == "workloads job sgemm --duration=40 (tenant a) on GPU 0"
    assert lines[tenants + 3].startswith(
        "workloads job llm-train --random=tiny (tenant b) (in the background) on GPU 0"
    )
    assert lines[tenants + 5] == "under MPS"


def test_dry_run_lists_changes_to_machine(exporter, tmp_path, closed_address):
    plan = write_file(tmp_path, PLAN)
    lines = output_lines(run_plan(exporter, plan, "--dry-run", "--exporter", closed_address))

    unchecked = lines.pop(-2)
    assert unchecked.startswith("limits of the GPUs not checked: cannot use NVML")
    assert lines[lines.index("changes to this machine:") + 1 :] == [
        "sets the power limit of GPU 0: 300, 500 W, and restores the previous limits",
        "starts an MPS daemon for each step under MPS, and stops it",
        "waits before each run for at most 90 s until the GPUs have cooled down",
        "pauses for 2 s before each step",
        f"reports its runs to the exporter at {closed_address}",
        f"writes to {tmp_path / 'results'}",
        "dry run: nothing was changed",
    ]
    assert not (tmp_path / "results").exists()


def test_dry_run_of_sweep_needs_no_exporter(exporter, tmp_path, closed_address):
    options = (
        "--sm-clocks",
        "900,1200",
        "--gpus",
        "0,1",
        "--repeats",
        "2",
        "--order",
        "as-given",
        "--dry-run",
    )
    sweep = exporter.workloads(
        "sweep",
        "sgemm",
        "--repetitions",
        "5",
        *options,
        "--out",
        str(tmp_path / "none"),
        "--exporter",
        closed_address,
    )
    lines = output_lines(sweep)

    assert lines[0] == "sgemm-sweep: 4 runs; unknown duration"
    assert lines[1] == "1 sgemm sm_clock_hertz=900000000 repeat 1: unknown duration"
    assert lines[4] == "under an SM clock of 900 MHz"
    assert "locks the SM clock of GPU 0, 1: 900, 1200 MHz, and unlocks it at the end" in lines
    assert lines[-2].startswith("limits of the GPUs not checked: cannot use NVML")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("idle", "total_s"), [("8", 36), ("8s", 36), ("0.5m", 80), ("0", 20)])
def test_dry_run_of_sweep_reads_unit_of_idle(exporter, closed_address, idle, total_s):
    sweep = exporter.workloads(
        *(
            "sweep",
            "sgemm",
            "--duration",
            "20",
            "--power-limits",
            "300",
            "--gpus",
            "0",
            "--idle",
            idle,
            "--dry-run",
        ),
        *("--exporter", closed_address),
    )

    # the run of 20 s and, if not 0, two idle runs
    assert f"about {total_s} s" in output_lines(sweep)[0]


@pytest.mark.parametrize("idle", ["8x", "-1", "nan"])
def test_sweep_refuses_invalid_idle(exporter, closed_address, idle):
    done = exporter.workloads(
        "sweep",
        "sgemm",
        "--power-limits",
        "300",
        f"--idle={idle}",
        "--dry-run",
        "--exporter",
        closed_address,
    )

    assert done.returncode == 2
    assert (
        f"--idle: {idle} is not a duration; give seconds, like 10 or 0.5, or a unit, like 5m"
        in done.stderr
    )


def test_dry_run_excludes_resume(exporter, tmp_path):
    done = exporter.workloads(
        "plan", str(write_file(tmp_path, PLAN)), "--dry-run", "--resume", str(tmp_path)
    )

    assert done.returncode == 2
    assert "remove --resume" in done.stderr
