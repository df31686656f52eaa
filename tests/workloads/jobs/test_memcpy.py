import signal

import pytest

from tests.polling import eventually
from tests.workloads.caps_testbed import power_steps_w
from tests.workloads.programs import NO_TORCH
from wattline_workloads.jobs import memcpy


@pytest.mark.parametrize(
    ("direction", "watts", "bytes_per_second"),
    [
        ("host-to-device", 140.2, 25e9),
        ("device-to-host", 140.2, 25e9),
        ("device-to-device", 326.8, 1e12),
    ],
)
def test_memcpy_simulated_power_depends_on_direction(simulated, direction, watts, bytes_per_second):
    exporter, gpus = simulated
    # 0.1 and 0.4 of the 622 W between idle (78 W) and peak
    done = exporter.workloads("job", "memcpy", "--direction", direction, "--duration", "0.5")

    run = exporter.api.only_run
    assert done.returncode == 0, done.stderr
    assert power_steps_w(gpus, 0) == pytest.approx([78, watts, 78])
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
    [
        ("8", 8),
        ("1GiB", 2**30),
        ("1.5kB", 1500),
        ("6.4GB", 6_400_000_000),
        ("2 MiB", 2 * 2**20),
        ("512M", 512_000_000),
    ],
)
def test_parse_size_accepts_units(text, size):
    assert memcpy.parse_size(text) == size


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_memcpy_signal_ends_run_as_interrupted(exporter, name):
    process = exporter.start(
        "-m", "wattline_workloads.jobs.memcpy", "--size", "1MB", "--duration", "60", **NO_TORCH
    )
    with process:
        eventually(lambda: exporter.api.runs and exporter.api.only_run.work)
        process.send_signal(signal.Signals[name])
        process.communicate(timeout=60)

    assert process.returncode == -signal.Signals[name]
    assert exporter.api.only_run.outcome == "interrupted"
