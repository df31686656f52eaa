"""Jobs `sgemm` and `dgemm` on simulated GPUs."""

import os
import signal
import time

import pytest

from tests.polling import eventually
from tests.workloads.caps_testbed import power_steps_w
from tests.workloads.jobs.kernels.kernel_events import kernel_events
from wattline_exporter.simulation.state_file import clock_s


def test_sgemm_simulated_loads_only_selected_gpu(simulated):
    exporter, gpus = simulated
    idle_w = gpus.gpus[1].product.idle_w
    process = exporter.start(
        "-m", "wattline_workloads", "job", "sgemm", "--gpus", "1", "--duration", "1.5"
    )
    with process:
        (process_on_gpu,) = eventually(lambda: gpus.gpus[1].processes)
        process.communicate(timeout=60)

    assert process.returncode == 0
    assert process_on_gpu.pid in exporter.api.pids[exporter.api.only_run.run_id]
    assert power_steps_w(gpus, 0) == [idle_w]
    assert power_steps_w(gpus, 1) == [idle_w, 700, idle_w]
    assert gpus.gpus[1].processes == ()


def test_sgemm_simulated_speed_is_peak_of_model(simulated):
    exporter, _ = simulated
    # 2 x 4096^3 = 137.4 GFLOP at 67 TFLOP/s are 2.05 ms each: 400 take 0.82 s
    exporter.workloads("job", "sgemm", "--repetitions", "400")

    run = exporter.api.only_run
    assert run.work == {"flop": 400 * 2 * 4096**3}
    assert run.results["flop_per_second"] <= 67e12
    assert run.duration_s >= 0.82


def test_sgemm_simulated_load_ends_with_the_measurement(simulated):
    exporter, gpus = simulated
    exporter.workloads("job", "sgemm", "--duration", "0.5")

    load_end_s = gpus.gpus[0].segments[-1].begin_s + time.monotonic() - clock_s()
    (rest_s,) = (one.at_s for one in exporter.api.requests if one.body == {"name": "rest"})
    assert gpus.gpus[0].processes == ()
    assert load_end_s <= rest_s


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
    process = exporter.start("-m", "wattline_workloads", "job", "sgemm", "--duration", "60")
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
    process = exporter.start("-m", "wattline_workloads.jobs.sgemm", "--duration", "60")
    with process:
        eventually(lambda: exporter.api.runs and exporter.api.only_run.work)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)

    assert process.returncode == -signal.SIGTERM
    assert exporter.api.only_run.outcome == "interrupted"
    assert exporter.api.only_run.work["flop"] > 0


def test_sgemm_simulated_killed_job_leaves_gpus_idle(simulated):
    exporter, gpus = simulated
    process = exporter.start("-m", "wattline_workloads", "job", "sgemm", "--duration", "60")
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


SGEMM_S = 2 * 4096**3 / 67e12  # at the peak of the simulated H200


def test_sgemm_simulated_kernel_time_is_that_of_model(simulated):
    exporter, _ = simulated
    exporter.workloads("job", "sgemm", "--repetitions", "30")

    results = exporter.api.only_run.results
    assert results["kernel_seconds_p50"] == pytest.approx(SGEMM_S)
    assert results["kernel_seconds_p99"] == pytest.approx(SGEMM_S)
    assert results["kernel_seconds_sum"] == pytest.approx(30 * SGEMM_S)


def test_dgemm_simulated_speed_is_half_of_sgemm(simulated):
    exporter, _ = simulated
    exporter.workloads("job", "dgemm", "--repetitions", "20")

    run = exporter.api.only_run
    assert run.results["kernel_seconds_mean"] == pytest.approx(2 * SGEMM_S)
    assert run.results["flop_per_second"] <= 33.5e12


def test_sgemm_events_name_gpu_of_kernel(simulated, tmp_path):
    exporter, _ = simulated
    exporter.workloads(
        "job", "sgemm", "--gpus", "all", "--repetitions", "3", "--out", str(tmp_path)
    )

    assert sorted(event.values["gpu"] for event in kernel_events(tmp_path)) == [0, 0, 0, 1, 1, 1]


def test_sgemm_waits_for_other_tenants_after_warm_up(simulated, tmp_path):
    exporter, _ = simulated
    barrier_folder = tmp_path / "barrier"
    barrier_folder.mkdir()
    process = exporter.start(
        "-m",
        "wattline_workloads.jobs.sgemm",
        "--repetitions",
        "2",
        WATTLINE_BARRIER=f"{barrier_folder}:2:60",
    )
    with process:
        eventually(lambda: list(barrier_folder.glob("ready-*")))
        phases = [body["name"] for body in exporter.api.bodies("/phase")]
        (barrier_folder / "ready-other").touch()
        _, stderr = process.communicate(timeout=60)

    assert phases == ["load", "warmup"]
    assert process.returncode == 0, stderr
    assert [body["name"] for body in exporter.api.bodies("/phase")] == [
        "load",
        "warmup",
        "measure",
        "rest",
    ]


def test_dgemm_failed_tenant_stops_before_measure(simulated, tmp_path):
    exporter, _ = simulated
    (tmp_path / "abandoned").touch()
    done = exporter.python(
        "-m",
        "wattline_workloads.jobs.dgemm",
        "--repetitions",
        "2",
        WATTLINE_BARRIER=f"{tmp_path}:2:60",
    )

    assert done.returncode == 1
    assert "dgemm: tenant not started: another tenant failed" in done.stderr
    assert "--size" not in done.stderr
    assert exporter.api.only_run.work == {}
