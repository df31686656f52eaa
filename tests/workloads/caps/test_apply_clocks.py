"""Clock locks of a sweep."""

from __future__ import annotations

import os

from tests.polling import eventually
from wattline_exporter.simulation import Fault

BEFORE_W = [700.0, 500.0]


def test_clock_lock_is_set_on_all_gpus_and_removed(testbed):
    sweep = testbed.start_sweep("all", "990e6", "300", "1980e6")
    sweep.read_status()

    assert sweep.advance() == "ready"
    assert testbed.clocks_mhz() == [990, 990]
    assert testbed.limits_w() == BEFORE_W
    assert sweep.advance() == "ready"
    assert (testbed.clocks_mhz(), testbed.limits_w()) == ([0, 0], [300, 300])
    assert sweep.advance() == "ready"
    assert (testbed.clocks_mhz(), testbed.limits_w()) == ([1980, 1980], BEFORE_W)
    assert sweep.advance() == "left"
    assert (testbed.clocks_mhz(), testbed.limits_w()) == ([0, 0], BEFORE_W)


def test_clock_lock_of_killed_sweep_is_removed(testbed):
    sweep = testbed.start_capped_sweep("1", "990e6")
    assert testbed.clocks_mhz() == [0, 990]
    sweep.process.kill()
    sweep.wait()

    eventually(lambda: not testbed.has_journal())
    assert testbed.clocks_mhz() == [0, 0]
    assert testbed.limits_w() == BEFORE_W


def test_clock_lock_of_others_is_kept_by_power_sweep(testbed):
    testbed.simulation.lock_clock(0, 1_500)
    sweep = testbed.start_capped_sweep("all", "300")
    sweep.advance()

    assert sweep.wait()[0] == 0
    assert testbed.clocks_mhz() == [1_500, 0]


def test_clock_unsupported_names_nearest(testbed):
    code, err = testbed.start_sweep("all", "1000e6").wait()

    assert code == 1
    assert err == (
        "GPU 0 (SIMULATED NVIDIA H200) has no SM clock of 1000 MHz; "
        "its clocks are 345 to 1980 MHz, the nearest is 1005 MHz\n"
    )


def test_clock_above_lock_is_detected(testbed):
    testbed.simulation.drive(0, 1.0, pid=os.getpid())
    testbed.simulation.set_fault(0, Fault.UNMOVED, on=True)
    sweep = testbed.start_capped_sweep("0", "990e6")
    code, err = sweep.wait()

    assert code == 1
    assert (
        "GPU 0 (SIMULATED NVIDIA H200) runs at 1980 MHz although its clock is locked to 990 MHz"
        in err
    )
    assert testbed.limits_w() == BEFORE_W
