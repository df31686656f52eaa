"""Clocks that a sweep locks."""

from __future__ import annotations

import os

from exporter.simulation import Fault
from tests.waiting import eventually

BEFORE_W = [700.0, 500.0]


def test_clock_lock_is_set_on_all_gpus_and_removed(bench):
    sweep = bench.sweep("all", "990e6", "300", "1980e6")
    sweep.heard()

    assert sweep.go_on() == "ready"
    assert bench.clocks_mhz() == [990, 990]
    assert bench.limits_w() == BEFORE_W
    assert sweep.go_on() == "ready"
    assert (bench.clocks_mhz(), bench.limits_w()) == ([0, 0], [300, 300])
    assert sweep.go_on() == "ready"
    assert (bench.clocks_mhz(), bench.limits_w()) == ([1980, 1980], BEFORE_W)
    assert sweep.go_on() == "left"
    assert (bench.clocks_mhz(), bench.limits_w()) == ([0, 0], BEFORE_W)


def test_clock_lock_of_killed_sweep_is_removed(bench):
    sweep = bench.capped("1", "990e6")
    assert bench.clocks_mhz() == [0, 990]
    sweep.process.kill()
    sweep.end()

    eventually(lambda: not bench.has_journal())
    assert bench.clocks_mhz() == [0, 0]
    assert bench.limits_w() == BEFORE_W


def test_clock_lock_of_others_is_kept_by_power_sweep(bench):
    bench.simulation.lock_clock(0, 1_500)
    sweep = bench.capped("all", "300")
    sweep.go_on()

    assert sweep.end()[0] == 0
    assert bench.clocks_mhz() == [1_500, 0]


def test_clock_unsupported_names_nearest(bench):
    code, err = bench.sweep("all", "1000e6").end()

    assert code == 1
    assert err == (
        "GPU 0 (SIMULATED NVIDIA H200) has no SM clock of 1000 MHz; "
        "its clocks are 345 to 1980 MHz, the nearest is 1005 MHz\n"
    )


def test_clock_above_lock_is_detected(bench):
    bench.simulation.drive(0, 1.0, pid=os.getpid())
    bench.simulation.set_fault(0, Fault.UNMOVED, on=True)
    sweep = bench.capped("0", "990e6")
    code, err = sweep.end()

    assert code == 1
    assert "GPU 0 (SIMULATED NVIDIA H200) runs at 1980 MHz although its clock is locked to 990 MHz" in err
    assert bench.limits_w() == BEFORE_W
