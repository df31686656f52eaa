"""Jobs `sgemm`, `dgemm` and `memcpy`: counts, timing and errors."""

import signal
from itertools import pairwise
from pathlib import Path

import pytest

from exporter import simulation
from exporter.contract.run import RECORD_EVENT, IterationEvent, PhaseEvent
from tests.fakes.run_api import RunApi, serving
from tests.waiting import eventually
from tests.workloads.conftest import Exporter
from tests.workloads.plans.sweep_runs import drawn_w
from workloads import jobs
from workloads.jobs import llm_train, memcpy

SGEMM_S = 2 * 4096**3 / 67e12  # at the peak of the simulated H200


@pytest.fixture
def simulated(tmp_path):
    """Two simulated H200, and an exporter that measures them."""
    path = tmp_path / "simulation.state"
    gpus = simulation.make_gpus(2, simulation.PRODUCTS["H200"])
    simulation.create(path, gpus, simulation.boottime())
    api = RunApi(known_gpus=tuple(gpu.uuid for gpu in gpus), simulation=str(path))
    with simulation.Simulation.open(path) as opened, serving(api) as address:
        yield Exporter(api, address), opened


def read_events(folder):
    """Return the events of the only run in the folder."""
    (path,) = folder.glob("*/events.jsonl")
    return [RECORD_EVENT.validate_json(line) for line in path.read_text().splitlines()]


def kernel_events(folder):
    return [event for event in read_events(folder) if isinstance(event, IterationEvent)]


def test_dgemm_counts_two_flop_per_multiply_add(exporter):
    done = exporter.workloads("job", "dgemm", "--size", "32", "--repetitions", "5", OMP_NUM_THREADS="1")

    run = exporter.api.only_run
    assert done.returncode == 0, done.stderr
    assert (run.workload, run.outcome) == ("dgemm", "ok")
    assert run.work == {"flop": 327_680}  # 2 x 32 x 32 x 32 x 5, without warm-up
    assert run.results["kernel_count"] == 5


def test_dgemm_kernels_are_recorded_with_time_and_work(exporter, tmp_path):
    # 2 x 512^3 = 268 MFLOP take more than 1 ms on one core: each kernel is timed separately
    arguments = ("job", "dgemm", "--size", "512", "--repetitions", "4", "--out", str(tmp_path))
    exporter.workloads(*arguments, OMP_NUM_THREADS="1")

    events_of_kernels = kernel_events(tmp_path)
    assert [event.work for event in events_of_kernels] == [{"flop": 268_435_456}] * 4
    assert [event.values for event in events_of_kernels] == [{"kernel_count": 1, "gpu": 0}] * 4
    assert {event.phase for event in events_of_kernels} == {"measure"}
    total_s = sum(event.latency_seconds for event in events_of_kernels)
    assert exporter.api.only_run.results["kernel_seconds_sum"] == pytest.approx(total_s)
    assert exporter.api.only_run.results["kernel_seconds_mean"] == pytest.approx(total_s / 4)


def test_sgemm_kernels_follow_warm_up_without_overlap(exporter, tmp_path):
    arguments = ("job", "sgemm", "--size", "256", "--repetitions", "50", "--out", str(tmp_path))
    exporter.workloads(*arguments, OMP_NUM_THREADS="1")

    events = read_events(tmp_path)
    phase_starts = {event.name: event.t for event in events if isinstance(event, PhaseEvent)}
    events_of_kernels = kernel_events(tmp_path)
    assert list(phase_starts) == ["load", "warmup", "measure", "rest"]
    assert phase_starts["measure"] <= events_of_kernels[0].t - events_of_kernels[0].latency_seconds + 0.001  # rounding
    assert events_of_kernels[-1].t <= phase_starts["rest"] + 0.001
    assert all(after.t - after.latency_seconds >= before.t - 0.001 for before, after in pairwise(events_of_kernels))


def test_sgemm_short_kernels_are_timed_in_groups(exporter, tmp_path):
    arguments = ("job", "sgemm", "--size", "8", "--repetitions", "1000", "--out", str(tmp_path))
    done = exporter.workloads(*arguments, OMP_NUM_THREADS="1")

    events_of_kernels = kernel_events(tmp_path)
    assert sum(event.values["kernel_count"] for event in events_of_kernels) == 1000
    assert all(event.work == {"flop": 1024 * event.values["kernel_count"]} for event in events_of_kernels)
    assert len(events_of_kernels) < 1000
    assert "timed together" in done.stderr


def test_sgemm_without_torch_uses_numpy(exporter):
    without_torch = "import sys; sys.modules['torch'] = None; from workloads.jobs import sgemm; "
    done = exporter.python("-c", without_torch + "sys.exit(sgemm.main(['--size', '16', '--repetitions', '2']))")

    assert done.returncode == 0, done.stderr
    assert exporter.api.only_run.work == {"flop": 16_384}


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
    exporter.workloads("job", "sgemm", "--gpus", "all", "--repetitions", "3", "--out", str(tmp_path))

    assert sorted(event.values["gpu"] for event in kernel_events(tmp_path)) == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("direction", "watts", "bytes_per_second"),
    [("host-to-device", 140.2, 25e9), ("device-to-host", 140.2, 25e9), ("device-to-device", 326.8, 1e12)],
)
def test_memcpy_simulated_power_depends_on_direction(simulated, direction, watts, bytes_per_second):
    exporter, gpus = simulated
    # 0.1 and 0.4 of the 622 W between idle (78 W) and peak
    done = exporter.workloads("job", "memcpy", "--direction", direction, "--duration", "0.5")

    run = exporter.api.only_run
    assert done.returncode == 0, done.stderr
    assert drawn_w(gpus, 0) == pytest.approx([78, watts, 78])
    assert run.results["copy_seconds_p50"] == pytest.approx(2**30 / bytes_per_second)
    assert run.results["bytes_per_second"] <= bytes_per_second
    assert run.work == {"bytes": run.results["copy_count"] * 2**30}


def test_memcpy_counts_each_byte_once(exporter):
    done = exporter.workloads("job", "memcpy", "--size", "2MB", "--repetitions", "3")

    run = exporter.api.only_run
    assert run.work == {"bytes": 6_000_000}
    assert run.results["bytes_per_second"] > 0
    assert "no CUDA device: copying within host memory" in done.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("8", 8), ("1GiB", 2**30), ("1.5kB", 1500), ("6.4GB", 6_400_000_000), ("2 MiB", 2 * 2**20), ("512M", 512_000_000)],
)
def test_parse_size_accepts_units(text, size):
    assert memcpy.parse_size(text) == size


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["memcpy", "--size", "much"], "argument --size: much is not a size; give bytes, like 1GiB, 500MB or 4096"),
        (["memcpy", "--size", "0"], "argument --size: 0 is not a size"),
        (["memcpy", "--direction", "up"], "argument --direction: invalid choice: 'up'"),
        (["dgemm", "--warmup", "0"], "argument --warmup: 0 is less than 1"),
        (["dgemm", "--duration", "1", "--repetitions", "1"], "not allowed with argument"),
    ],
)
def test_kernel_job_invalid_options_are_one_line_error(exporter, arguments, message):
    done = exporter.workloads("job", *arguments)

    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert exporter.api.runs == {}


def test_sgemm_too_large_matrices_are_one_line_error(exporter):
    done = exporter.workloads("job", "sgemm", "--size", "10000000", "--repetitions", "1")  # 400 TB each

    assert done.returncode == 1
    assert "a smaller --size needs less memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert exporter.api.only_run.outcome == "failed"


def test_sgemm_waits_for_other_tenants_after_warm_up(simulated, tmp_path):
    exporter, _ = simulated
    barrier_folder = tmp_path / "barrier"
    barrier_folder.mkdir()
    process = exporter.start(
        "-m", "workloads.jobs.sgemm", "--repetitions", "2", WATTLINE_BARRIER=f"{barrier_folder}:2:60"
    )
    with process:
        eventually(lambda: list(barrier_folder.glob("ready-*")))
        phases = [body["name"] for body in exporter.api.bodies("/phase")]
        (barrier_folder / "ready-other").touch()
        _, stderr = process.communicate(timeout=60)

    assert phases == ["load", "warmup"]
    assert process.returncode == 0, stderr
    assert [body["name"] for body in exporter.api.bodies("/phase")] == ["load", "warmup", "measure", "rest"]


def test_dgemm_failed_tenant_stops_before_measure(simulated, tmp_path):
    exporter, _ = simulated
    (tmp_path / "abandoned").touch()
    done = exporter.python("-m", "workloads.jobs.dgemm", "--repetitions", "2", WATTLINE_BARRIER=f"{tmp_path}:2:60")

    assert done.returncode == 1
    assert "dgemm: tenant not started: another tenant failed" in done.stderr
    assert "--size" not in done.stderr
    assert exporter.api.only_run.work == {}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_memcpy_signal_ends_run_as_interrupted(exporter, name):
    process = exporter.start("-m", "workloads.jobs.memcpy", "--size", "1MB", "--duration", "60")
    with process:
        eventually(lambda: exporter.api.runs and exporter.api.only_run.work)
        process.send_signal(signal.Signals[name])
        process.communicate(timeout=60)

    assert process.returncode == -signal.Signals[name]
    assert exporter.api.only_run.outcome == "interrupted"


def test_job_registry_has_one_module_for_each_job():
    root = Path(jobs.__file__).parent
    modules = {path.stem for path in root.glob("*.py")} - {"__init__", "base"}

    assert [f"workloads.jobs.{module}" for module in sorted(modules)] == [
        jobs.MODULES[each] for each in jobs.job_names()
    ]
    assert {name.replace("-", "_") for name in jobs.job_names()} == modules
    assert jobs.load_job("llm-train").__doc__ == llm_train.__doc__
    assert jobs.job_command("llm-train", ["-x"])[1:] == ["-P", "-m", "workloads.jobs.llm_train", "-x"]
    with pytest.raises(KeyError):
        jobs.load_job("llm_train")
