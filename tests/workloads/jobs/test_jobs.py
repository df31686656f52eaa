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


def test_sgemm_counts_two_flop_per_multiply_add(exporter):
    done = exporter.workloads("job", "sgemm", "--size", "64", "--repetitions", "3")

    run = exporter.api.only_run
    assert done.returncode == 0
    assert (run.workload, run.outcome) == ("sgemm", "ok")
    assert run.work == {"flop": 1_572_864}  # 2 x 64 x 64 x 64 x 3
    assert run.results["flop_per_second"] > 0


def test_sgemm_duration_option_limits_run(exporter):
    exporter.workloads("job", "sgemm", "--size", "16", "--duration", "0.2")

    run = exporter.api.only_run
    assert run.work["flop"] % (2 * 16**3) == 0
    assert run.duration_seconds >= 0.2


def test_sleep_duration_is_run_duration(exporter):
    done = exporter.workloads("job", "sleep", "--duration", "0.3", "-l", "state=idle")

    run = exporter.api.only_run
    assert done.returncode == 0
    assert (run.workload, run.labels, run.outcome) == ("sleep", {"state": "idle"}, "ok")
    assert run.duration_seconds >= 0.3


def test_sgemm_simulated_loads_only_selected_gpu(simulated):
    exporter, gpus = simulated
    idle_w = gpus.gpus[1].product.idle_w
    process = exporter.start("-m", "workloads", "job", "sgemm", "--gpus", "1", "--duration", "1.5")
    with process:
        (process_on_gpu,) = eventually(lambda: gpus.gpus[1].processes)
        process.communicate(timeout=60)

    assert process.returncode == 0
    assert process_on_gpu.pid in exporter.api.pids[exporter.api.only_run.run_id]
    assert drawn_w(gpus, 0) == [idle_w]
    assert drawn_w(gpus, 1) == [idle_w, 700, idle_w]
    assert gpus.gpus[1].processes == ()


def test_sgemm_simulated_speed_is_peak_of_model(simulated):
    exporter, _ = simulated
    # 2 x 4096^3 = 137.4 GFLOP at 67 TFLOP/s are 2.05 ms each: 400 take 0.82 s
    exporter.workloads("job", "sgemm", "--repetitions", "400")

    run = exporter.api.only_run
    assert run.work == {"flop": 400 * 2 * 4096**3}
    assert run.results["flop_per_second"] <= 67e12
    assert run.duration_seconds >= 0.82


def test_sgemm_simulated_power_limit_reduces_speed(simulated):
    exporter, gpus = simulated
    gpus.set_limit(0, 200)
    exporter.workloads("job", "sgemm", "--repetitions", "200")

    # ((200 - 78) / (700 - 78)) ^ (1/3) of full speed
    assert exporter.api.only_run.results["flop_per_second"] <= 67e12 * 0.5811


def test_sgemm_two_gpus_double_work(simulated):
    exporter, _ = simulated
    exporter.workloads("job", "sgemm", "--gpus", "all", "--repetitions", "10")

    assert exporter.api.only_run.work == {"flop": 2 * 10 * 2 * 4096**3}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_sgemm_simulated_signal_leaves_gpus_idle(simulated, name):
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


def test_sgemm_without_runner_starts_own_run(simulated):
    exporter, _ = simulated
    process = exporter.start("-m", "workloads.jobs.sgemm", "--duration", "60")
    with process:
        eventually(lambda: exporter.api.runs and exporter.api.only_run.work)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert process.returncode == -signal.SIGTERM
    assert exporter.api.only_run.outcome == "interrupted"
    assert exporter.api.only_run.work["flop"] > 0


def test_sgemm_simulated_killed_job_leaves_gpus_idle(simulated):
    exporter, gpus = simulated
    process = exporter.start("-m", "workloads", "job", "sgemm", "--duration", "60")
    with process:
        eventually(lambda: gpus.gpus[0].processes)
        process_of_job = gpus.gpus[0].processes[0].pid
        os.kill(process_of_job, signal.SIGKILL)
        process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGKILL
    assert gpus.gpus[0].processes == ()


def test_sgemm_missing_simulation_file_is_one_line_error(simulated, tmp_path):
    exporter, _ = simulated
    exporter.api.simulation = str(tmp_path / "gone")
    done = exporter.workloads("job", "sgemm", "--repetitions", "1")

    assert done.returncode == 1
    assert "cannot open the simulation" in done.stderr
    assert "Traceback" not in done.stderr
