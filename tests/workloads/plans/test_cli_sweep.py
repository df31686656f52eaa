"""Sweeps on a simulated GPU with a real exporter and a job whose best cap is known."""

import re
import signal
import subprocess
import sys

import pytest

from tests import daemon
from tests.polling import eventually
from tests.workloads.plans.plan_files import read_journal, write_file
from tests.workloads.programs import NURSERY
from wattline_exporter.simulation import Fault

BEFORE_W = 600  # differs from the GPU's default of 700
STEP_J = {350: 35.0, 450: 31.2, 700: 35.0}
"""Energy of a step of 0.05 s: w × 0.05 / ∛((w − 300) / 400), lowest at 450 W."""


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    with daemon.daemon(
        tmp_path_factory.mktemp("exporter"), "--simulate", "1xH200", "--no-history"
    ) as started:
        yield started


@pytest.fixture
def limit_w(exporter):
    """Return a function that reads the GPU's limit, which a user set before."""
    with exporter.simulation() as simulation:
        simulation.set_limit(0, BEFORE_W)
        yield lambda: simulation.gpus[0].limit_w


@pytest.fixture
def environment(exporter, tmp_path):
    return daemon.environment(
        {"WATTLINE_EXPORTER": exporter.url, "XDG_STATE_HOME": str(tmp_path / "state")}
    )


@pytest.fixture
def start(environment):
    def start_command(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "wattline_workloads", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start_command


@pytest.fixture
def workloads(environment):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return NURSERY.run(["-m", "wattline_workloads", *arguments], environment, timeout_s=240)

    return run


def test_sweep_runs_under_each_cap_follow_law(exporter, limit_w, workloads, tmp_path):
    results = tmp_path / "results"
    done = workloads(
        *(
            "sweep",
            "simulated-load",
            "--power-limits",
            "350,450,700",
            "--steps",
            "40",
            "--out",
            str(results),
        ),
        *("-l", "site=lab", "--gpus", "0"),
    )

    assert done.returncode == 0, done.stderr
    law_j = {}
    for line in read_journal(results):
        run = exporter.get(f"/api/v1/runs/{line['run_id']}")[1]
        cap_w = int(run["labels"]["power_limit_watts"])
        (measure,) = [phase for phase in run["phases"] if phase["name"] == "measure"]
        assert (run["outcome"], run["labels"]["site"], run["work"]["steps"]) == ("ok", "lab", 40)
        assert line["settings"] == {"power_limit_watts": cap_w}
        joules, half_j = (
            measure[name]["gpu"] for name in ("energy_joules", "energy_uncertainty_joules")
        )
        assert half_j < 0.15 * joules
        assert joules - half_j <= cap_w * measure["duration_seconds"]
        assert joules + half_j >= 40 * STEP_J[cap_w]
        law_j[cap_w] = run["results"]["law_joules_per_step"]
    assert law_j == pytest.approx(STEP_J, rel=0.01)
    assert limit_w() == BEFORE_W


def test_sweep_signal_restores_limit_and_can_be_resumed(limit_w, start, tmp_path):
    results = tmp_path / "results"
    with start(
        *(
            "sweep",
            "simulated-load",
            "--power-limits",
            "300,400",
            "--duration",
            "60",
            "--out",
            str(results),
        ),
        *("--order", "as-given"),
    ) as process:
        eventually(lambda: limit_w() == 300)
        eventually(lambda: list(results.glob("*/events.jsonl")))
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)

    (line,) = read_journal(results)
    assert process.returncode == -signal.SIGTERM
    assert limit_w() == BEFORE_W
    assert line["cut_off"]
    assert (
        f"2 of 2 steps remain; continue with: workloads plan {results}/plan.yaml --resume {results}"
        in stderr
    )


def test_sweep_ineffective_clock_lock_stops_run(exporter, limit_w, workloads, tmp_path):
    """Check the lock during the run, since an idle GPU is below any clock."""
    results = tmp_path / "results"
    with exporter.simulation() as simulation:
        simulation.set_fault(0, Fault.UNMOVED, on=True)
        done = workloads(
            *(
                "sweep",
                "simulated-load",
                "--law",
                "light",
                "--sm-clocks",
                "990",
                "--duration",
                "60",
            ),
            *("--out", str(results)),
        )
        simulation.set_fault(0, Fault.UNMOVED, on=False)

    (line,) = read_journal(results)
    assert done.returncode == 1
    assert "MHz although its clock is locked to 990 MHz" in done.stderr
    assert (line["outcome"], line["cut_off"]) == ("interrupted", True)


def test_sweep_unsupported_cap_fails_before_run(limit_w, workloads, tmp_path):
    results = tmp_path / "results"
    done = workloads("sweep", "simulated-load", "--power-limits", "100,400", "--out", str(results))

    assert done.returncode == 1
    assert "supports power limits of 200 to 700 W, not 100 W" in done.stderr
    assert not results.exists()
    assert limit_w() == BEFORE_W


def test_dry_run_checks_caps_against_the_limits_of_the_gpu(exporter, limit_w, workloads):
    sweep = ("sweep", "simulated-load", "--dry-run")
    high = workloads(*sweep, "--power-limits", "400,800")
    clock = workloads(*sweep, "--sm-clocks", "901")
    good = workloads(*sweep, "--power-limits", "200,700")

    assert [each.returncode for each in (high, clock, good)] == [2, 2, 0]
    assert (
        "GPU 0 (SIMULATED NVIDIA H200) supports power limits of 200 to 700 W, not 800 W"
        in high.stderr
    )
    assert "has no SM clock of 901 MHz" in clock.stderr
    assert "limits checked on GPU 0 (SIMULATED NVIDIA H200)" in good.stdout
    assert limit_w() == BEFORE_W


def test_sweep_and_dry_run_refuse_an_unclear_gpu_alike(tmp_path):
    sweep = [
        "-m",
        "wattline_workloads",
        "sweep",
        "simulated-load",
        "--power-limits",
        "300",
        "--out",
        str(tmp_path / "results"),
    ]
    with daemon.daemon(tmp_path, "--simulate", "2xH200", "--no-history") as two:
        environ = daemon.environment(
            {"WATTLINE_EXPORTER": two.url, "XDG_STATE_HOME": str(tmp_path / "state")}
        )
        done = [
            NURSERY.run([*sweep, *more], environ)
            for more in ([], ["--dry-run"], ["--dry-run", "--gpus", "0"])
        ]

    assert [each.returncode for each in done] == [1, 2, 0]
    for each in done[:2]:
        assert (
            "cannot choose one of 2 GPUs for the cap; give gpus: [0] in the plan, or --gpus 0"
            in each.stderr
        )
        assert each.stdout == ""
    assert not (tmp_path / "results").exists()


def test_plan_run_without_cap_uses_previous_limit(limit_w, workloads, exporter, tmp_path):
    plan = write_file(
        tmp_path,
        "name: both\ngpus: 0\nruns:\n"
        "  - {name: capped, job: simulated-load, options: {steps: 10}, sweep: {power_limit_watts: "
        "[300]}}\n"
        "  - {name: free, job: simulated-load, options: {steps: 10}}\n"
        "cool_down: {to_celsius: 1, at_most_seconds: 0.2}\n",
    )
    done = workloads("plan", str(plan), "--out", str(tmp_path / "results"))

    capped, free = read_journal(tmp_path / "results")
    assert done.returncode == 0, done.stderr
    assert "power_limit_watts" not in free["labels"]
    results = exporter.get(f"/api/v1/runs/{free['run_id']}")[1]["results"]
    assert results["law_joules_per_step"] == pytest.approx(33.02, rel=0.01)  # 600 × 0.05 / ∛0.75
    assert re.search(r"still \d+ °C after \d+ s of cool-down, not 1 °C", done.stderr)
    assert capped["labels"]["power_limit_watts"] == "300"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sgemm"], "no setting to sweep; give --power-limits 300:700:50"),
        (
            ["sgemm", "--power-limit", "300"],
            "unknown option --power-limit; did you mean --power-limits?",
        ),
        (["sgemm", "--power-limits", "700:300:50"], "--power-limits: 700:300:50 has no values"),
        (
            ["sgemm", "--power-limits", "many"],
            "--power-limits: 'many' is not a list of whole numbers",
        ),
        (
            ["sgemm", "--power-limits", "300", "--sm-clocks", "900"],
            "cannot be set together; give one of the two",
        ),
        (
            ["sgemm", "--vary", "size"],
            "--vary size: give OPTION=VALUE,VALUE like --vary batch-size=1,8",
        ),
        (["sgemm", "--vary", "syze=1,2"], "unrecognized arguments: --syze=1; did you mean --size?"),
        (
            ["sgemm", "--bogus", "--power-limits", "300"],
            "job sgemm: unrecognized arguments: --bogus",
        ),
        (["sgem", "--power-limits", "300"], "unknown job 'sgem'; did you mean sgemm?"),
        (
            ["sgemm", "--power-limits", "300", "--order", "random"],
            "order: takes 'as-given', 'shuffled' or",
        ),
    ],
)
def test_sweep_usage_error_is_one_line_with_exit_code_2(workloads, tmp_path, arguments, message):
    done = workloads("sweep", *arguments, "--out", str(tmp_path / "results"))

    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()


def test_sweep_of_a_command_ends_with_the_next_command(exporter, workloads, limit_w, tmp_path):
    options = (
        "--gpus",
        "0",
        "--power-limits",
        "350,450",
        "--order",
        "as-given",
        "--out",
        str(tmp_path / "out"),
    )
    done = workloads("sweep", *options, "--", sys.executable, "-c", "print('trained')", "--steps")

    assert done.returncode == 0
    entries = read_journal(tmp_path / "out")
    assert [entry["settings"]["power_limit_watts"] for entry in entries] == [350, 450]
    assert re.fullmatch(
        r"wattline: for the best setting: analyzer recommend --experiment python\S*-sweep "
        rf"--source {exporter.url}",
        done.stderr.splitlines()[-1],
    )
    assert limit_w() == BEFORE_W


def test_sweep_stops_if_its_first_run_fails(workloads, limit_w, tmp_path):
    done = workloads(
        "sweep",
        "--gpus",
        "0",
        "--power-limits",
        "350,450",
        "--out",
        str(tmp_path / "out"),
        "--",
        "false",
    )

    assert done.returncode == 1
    assert len(read_journal(tmp_path / "out")) == 1
    assert (
        "stopped, since the first run failed; fix the job, or give --on-failure continue"
        in done.stderr
    )
    assert limit_w() == BEFORE_W


def test_sweep_without_a_good_run_names_no_recommendation(workloads, tmp_path):
    options = (
        "--gpus",
        "0",
        "--power-limits",
        "350",
        "--on-failure",
        "continue",
        "--out",
        str(tmp_path / "out"),
    )
    done = workloads("sweep", *options, "--", "false")

    assert done.returncode == 1
    assert "analyzer recommend" not in done.stderr
