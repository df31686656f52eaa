"""Idle power of GPUs with and without polling, in `exporter check`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest

from tests.fakes import nvml
from wattline_exporter.cli.check import run_checks
from wattline_exporter.cli.idle_power import IdlePower, describe_idle_power, measure_lines
from wattline_exporter.config.settings import Settings
from wattline_exporter.sensors.carbon.options import CarbonOptions
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Fault,
    Simulation,
    clock_s,
    create,
    make_gpus,
)

IDLE_W = 78.0


@pytest.fixture
def simulation(tmp_path):
    create(tmp_path / FILE_NAME, make_gpus(3, PRODUCTS["H200"]), clock_s() - 10)
    with Simulation.open(tmp_path / FILE_NAME) as opened:
        yield opened


def measure(simulation, indices="0,1,2"):
    """Use the loadable fake driver in the child process."""
    command = [sys.executable, "-P", "-m", "wattline_exporter.cli.idle_power", "1.5", indices]
    environment = {**os.environ, **nvml.environment(simulation.path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return [IdlePower(**json.loads(line)) for line in done.stdout.splitlines()]


def test_idle_power_unaffected_by_polling_is_equal_in_both_parts(simulation):
    simulation.set_fault(1, Fault.NO_COUNTER, on=True)
    simulation.drive(2, 0.5, pid=os.getpid())
    idle, silent, busy = measure(simulation)

    # a counter is behind by up to 0.1 s at both ends of 1.5 s: 7 %
    assert idle.unpolled_w == pytest.approx(IDLE_W, rel=0.08)
    assert idle.polled_w == pytest.approx(IDLE_W, rel=0.08)
    assert (idle.processes, idle.utilization) == (0, 0.0)
    assert (silent.unpolled_w, silent.polled_w) == (None, None)
    assert busy.processes == 1
    assert busy.utilization == pytest.approx(0.5, abs=0.01)


def test_idle_power_excludes_energy_before_the_pause(simulation):
    simulation.set_load(0, Constant(600.0), at=clock_s() - 5)
    simulation.set_load(0, Constant(IDLE_W))
    (idle_power,) = measure(simulation, "0")
    # up to 0.1 s at 600 W may be missing in the counter's first value
    assert idle_power.unpolled_w < IDLE_W + 0.11 * 600 / 1.5


def test_idle_power_equal_values_are_described():
    text = describe_idle_power(IdlePower(0, 4.0, 78.0, 79.5, 0, 0.0))
    assert text == (
        "GPU 0 draws 78.0 W without polling, 79.5 W polled once a second (± 2.0 W each); polling "
        "does not keep it awake"
    )


def test_idle_power_increase_by_polling_is_described_with_remedy():
    assert "polling keeps it awake" in describe_idle_power(IdlePower(0, 4.0, 40.0, 78.0, 0, 0.0))
    assert "nvidia-smi -pm 1" in describe_idle_power(IdlePower(0, 4.0, 40.0, 78.0, 0, 0.0))


def test_idle_power_of_gpu_in_use_is_not_idle():
    text = describe_idle_power(IdlePower(3, 4.0, 300.0, 310.0, 2, 0.35))
    assert "while in use (2 processes, utilization up to 35 %); not idle power" in text
    assert "awake" not in text


def test_idle_power_without_counter_is_unknown():
    assert describe_idle_power(IdlePower(1, 4.0, None, None, 0, 0.0)).startswith("GPU 1: unknown")


def test_idle_power_without_gpus_or_time_is_skipped():
    assert asyncio.run(measure_lines([], 4.0, None)) == []
    assert asyncio.run(measure_lines([0], 0.0, None)) == []


def test_check_prints_idle_power_of_each_responding_gpu(tmp_path):
    settings = Settings(state_path=tmp_path / "state", simulate="2xH200", sysfs=tmp_path)
    lines = [
        line.text
        for line in asyncio.run(run_checks(settings, (), CarbonOptions(), idle_s=1.0))
        if line.text.startswith("idle")
    ]
    assert [line.split(" draws")[0] for line in lines] == ["idle    GPU 0", "idle    GPU 1"]
    assert all("polling does not keep it awake" in line for line in lines)
