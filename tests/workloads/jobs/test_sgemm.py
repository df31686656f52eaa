"""Jobs `sgemm`, `dgemm` and `memcpy`: counts, timing and errors."""

from itertools import pairwise

import pytest

from tests.workloads.jobs.kernels.kernel_events import kernel_events, read_events
from wattline.contract.run_files import PhaseEvent


def test_dgemm_counts_two_flop_per_multiply_add(exporter):
    done = exporter.workloads(
        "job", "dgemm", "--size", "32", "--repetitions", "5", OMP_NUM_THREADS="1"
    )

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
    assert (
        phase_starts["measure"]
        <= events_of_kernels[0].t - events_of_kernels[0].latency_seconds + 0.001
    )  # rounding
    assert events_of_kernels[-1].t <= phase_starts["rest"] + 0.001
    assert all(
        after.t - after.latency_seconds >= before.t - 0.001
        for before, after in pairwise(events_of_kernels)
    )


def test_sgemm_short_kernels_are_timed_in_groups(exporter, tmp_path):
    arguments = ("job", "sgemm", "--size", "8", "--repetitions", "1000", "--out", str(tmp_path))
    done = exporter.workloads(*arguments, OMP_NUM_THREADS="1")

    events_of_kernels = kernel_events(tmp_path)
    assert sum(event.values["kernel_count"] for event in events_of_kernels) == 1000
    assert all(
        event.work == {"flop": 1024 * event.values["kernel_count"]} for event in events_of_kernels
    )
    assert len(events_of_kernels) < 1000
    assert "timed together" in done.stderr


def test_sgemm_without_torch_uses_numpy(exporter):
    without_torch = (
        "import sys; sys.modules['torch'] = None; from wattline_workloads.jobs import sgemm; "
    )
    done = exporter.python(
        "-c", without_torch + "sys.exit(sgemm.main(['--size', '16', '--repetitions', '2']))"
    )

    assert done.returncode == 0, done.stderr
    assert exporter.api.only_run.work == {"flop": 16_384}


def test_sgemm_too_large_matrices_are_one_line_error(exporter):
    done = exporter.workloads(
        "job", "sgemm", "--size", "10000000", "--repetitions", "1"
    )  # 400 TB each

    assert done.returncode == 1
    assert "a smaller --size needs less memory" in done.stderr
    assert "Traceback" not in done.stderr
    assert exporter.api.only_run.outcome == "failed"


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
    assert run.duration_s >= 0.2
