import os
import signal

import pytest

from exporter import simulation
from tests.fakes.run_api import RunApi, serving
from tests.waiting import eventually
from tests.workloads.conftest import Exporter
from tests.workloads.plans.sweep_runs import drawn_w


@pytest.fixture
def simulated(tmp_path):
    """Two simulated H200, and an exporter that measures them."""
    path = tmp_path / "simulation.state"
    gpus = simulation.make_gpus(2, simulation.PRODUCTS["H200"])
    simulation.create(path, gpus, simulation.boottime())
    api = RunApi(known_gpus=tuple(gpu.uuid for gpu in gpus), simulation=str(path))
    with simulation.Simulation.open(path) as opened, serving(api) as address:
        yield Exporter(api, address), opened


def test_sgemm_counts_two_operations_for_each_element_of_each_sum(exporter):
    done = exporter.workloads("job", "sgemm", "--size", "64", "--repetitions", "3")

    run = exporter.api.only_run
    assert done.returncode == 0
    assert (run.workload, run.outcome) == ("sgemm", "ok")
    assert run.work == {"flop": 1_572_864}  # 2 x 64 x 64 x 64 x 3
    assert run.results["flop_per_second"] > 0


def test_sgemm_runs_for_a_duration(exporter):
    exporter.workloads("job", "sgemm", "--size", "16", "--duration", "0.2")

    run = exporter.api.only_run
    assert run.work["flop"] % (2 * 16**3) == 0
    assert run.duration_seconds >= 0.2


def test_sleep_sleeps(exporter):
    done = exporter.workloads("job", "sleep", "--duration", "0.3", "-l", "state=idle")

    run = exporter.api.only_run
    assert done.returncode == 0
    assert (run.workload, run.labels, run.outcome) == ("sleep", {"state": "idle"}, "ok")
    assert run.duration_seconds >= 0.3


def test_a_job_uses_the_gpus_it_was_given_and_leaves_them_idle(simulated):
    exporter, gpus = simulated
    idle_w = gpus.gpus[1].product.idle_w
    process = exporter.start("-m", "workloads", "job", "sgemm", "--gpus", "1", "--duration", "1.5")
    with process:
        (seen,) = eventually(lambda: gpus.gpus[1].processes)
        process.communicate(timeout=60)

    assert process.returncode == 0
    assert seen.pid in exporter.api.pids[exporter.api.only_run.run_id]
    assert drawn_w(gpus, 0) == [idle_w]
    assert drawn_w(gpus, 1) == [idle_w, 700, idle_w]
    assert gpus.gpus[1].processes == ()


def test_simulated_work_is_done_at_the_models_speed(simulated):
    exporter, _ = simulated
    # 2 x 4096^3 = 137.4 GFLOP at 67 TFLOP/s are 2.05 ms each: 400 take 0.82 s
    exporter.workloads("job", "sgemm", "--repetitions", "400")

    run = exporter.api.only_run
    assert run.work == {"flop": 400 * 2 * 4096**3}
    assert run.results["flop_per_second"] <= 67e12
    assert run.duration_seconds >= 0.82


def test_a_power_limit_makes_simulated_work_slower(simulated):
    exporter, gpus = simulated
    gpus.set_limit(0, 200)
    exporter.workloads("job", "sgemm", "--repetitions", "200")

    # ((200 - 78) / (700 - 78)) ^ (1/3) of full speed
    assert exporter.api.only_run.results["flop_per_second"] <= 67e12 * 0.5811


def test_two_gpus_do_twice_the_work(simulated):
    exporter, _ = simulated
    exporter.workloads("job", "sgemm", "--gpus", "all", "--repetitions", "10")

    assert exporter.api.only_run.work == {"flop": 2 * 10 * 2 * 4096**3}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_an_interrupted_job_leaves_its_gpus_idle_and_ends_by_the_signal(simulated, name):
    exporter, gpus = simulated
    process = exporter.start("-m", "workloads", "job", "sgemm", "--duration", "60")
    with process:
        eventually(lambda: gpus.gpus[0].processes)
        process.send_signal(signal.Signals[name])
        process.communicate(timeout=60)

    assert process.returncode == 128 + signal.Signals[name]
    assert exporter.api.only_run.outcome == "interrupted"
    assert gpus.gpus[0].processes == ()
    assert gpus.power_w(0, gpus.now()) == gpus.gpus[0].product.idle_w


def test_a_job_without_a_runner_is_a_run_of_its_own(simulated):
    exporter, _ = simulated
    process = exporter.start("-m", "workloads.jobs.sgemm", "--duration", "60")
    with process:
        eventually(lambda: exporter.api.runs and exporter.api.only_run.work)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert process.returncode == -signal.SIGTERM
    assert exporter.api.only_run.outcome == "interrupted"
    assert exporter.api.only_run.work["flop"] > 0


def test_the_runner_frees_the_gpus_of_a_job_that_was_killed(simulated):
    exporter, gpus = simulated
    process = exporter.start("-m", "workloads", "job", "sgemm", "--duration", "60")
    with process:
        eventually(lambda: gpus.gpus[0].processes)
        process_of_job = gpus.gpus[0].processes[0].pid
        os.kill(process_of_job, signal.SIGKILL)
        process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGKILL
    assert gpus.gpus[0].processes == ()


def test_a_simulation_that_is_gone_is_one_line(simulated, tmp_path):
    exporter, _ = simulated
    exporter.api.simulation = str(tmp_path / "gone")
    done = exporter.workloads("job", "sgemm", "--repetitions", "1")

    assert done.returncode == 1
    assert "cannot open the simulation" in done.stderr
    assert "Traceback" not in done.stderr
