"""Caps of a sweep on simulated GPUs, set and restored through the fake driver and the state
file.
"""

from __future__ import annotations

import signal

import pytest

from wattline_exporter.simulation import Fault

BEFORE_W = [700.0, 500.0]


def test_caps_are_set_on_all_gpus_and_restored(testbed):
    sweep = testbed.start_sweep("all", "300", "450")

    assert sweep.read_status() == "ready"
    assert testbed.limits_w() == BEFORE_W
    assert sweep.advance() == "ready"
    assert testbed.limits_w() == [300, 300]
    assert sweep.advance() == "ready"
    assert testbed.limits_w() == [450, 450]
    assert sweep.advance() == "left"
    assert sweep.wait()[0] == 0
    assert testbed.limits_w() == BEFORE_W
    assert not testbed.has_journal()


def test_caps_are_set_on_selected_gpus_only(testbed):
    sweep = testbed.start_capped_sweep("1", "300")

    assert testbed.limits_w() == [700, 300]
    assert sweep.advance() == "left"
    assert testbed.limits_w() == BEFORE_W


def test_caps_journal_is_written_before_first_change(testbed):
    sweep = testbed.start_sweep("all", "300")
    sweep.read_status()

    assert [limit["power_limit_w"] for limit in testbed.journal()["initial_limits"]] == BEFORE_W
    assert testbed.journal()["holder"]["pid"] == sweep.process.pid
    assert testbed.limits_w() == BEFORE_W


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_caps_signal_restores_limits(nvml_testbed, number):
    sweep = nvml_testbed.start_capped_sweep("all", "300")
    assert nvml_testbed.limits_w() == [300, 300]
    sweep.process.send_signal(number)

    code, err = sweep.wait()
    assert (code, "Traceback" in err) == (-number, False)
    assert nvml_testbed.limits_w() == BEFORE_W
    assert not nvml_testbed.has_journal()


def test_caps_exception_restores_limits(nvml_testbed):
    sweep = nvml_testbed.start_capped_sweep("all", "300", "400")
    sweep.advance("fail")

    code, err = sweep.wait()
    assert code == 1
    assert err.endswith("the sweep failed\n")
    assert nvml_testbed.limits_w() == BEFORE_W


@pytest.mark.parametrize("cap", ["199", "701"])
def test_check_caps_out_of_range_fails_before_change(testbed, cap):
    code, err = testbed.start_sweep("all", "300", cap).wait()

    assert (code, testbed.has_journal()) == (1, False)
    assert (
        err == f"GPU 0 (SIMULATED NVIDIA H200) supports power limits of 200 to 700 W, not {cap} W\n"
    )
    assert testbed.limits_w() == BEFORE_W


def test_caps_without_permission_names_capability(testbed):
    testbed.simulation.set_fault(1, Fault.FORBIDDEN, on=True)
    code, err = testbed.start_sweep("all", "300").wait()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200)" in err
    assert (
        "root or the capability CAP_SYS_ADMIN is required; use sudo -E, or a container with "
        "--cap-add SYS_ADMIN" in err
    )
    assert not testbed.has_journal()


def test_caps_ineffective_limit_fails_and_restores_all(testbed):
    testbed.simulation.set_fault(1, Fault.UNMOVED, on=True)
    sweep = testbed.start_capped_sweep("all", "300")
    code, err = sweep.wait()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200) has a power limit of 500 W although 300 W was set" in err
    assert testbed.limits_w() == BEFORE_W
    assert not testbed.has_journal()


def test_caps_lost_gpu_is_named_and_others_are_restored(testbed):
    sweep = testbed.start_capped_sweep("all", "300", "400")
    testbed.simulation.set_fault(1, Fault.LOST, on=True)
    sweep.advance()
    code, err = sweep.wait()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200)" in err
    assert "lost" in err
    assert "try workloads caps restore" in err
    assert testbed.limits_w() == [700, 300]
    testbed.simulation.set_fault(1, Fault.LOST, on=False)
    assert testbed.caps("restore").returncode == 0
    assert testbed.limits_w() == BEFORE_W


def test_caps_confirm_detects_foreign_change(testbed):
    sweep = testbed.start_capped_sweep("all", "300", "400")
    testbed.simulation.set_limit(0, 350)
    sweep.advance()
    code, err = sweep.wait()

    assert code == 1
    assert "GPU 0 (SIMULATED NVIDIA H200) has a power limit of 350 W although 300 W was set" in err
    assert testbed.limits_w() == BEFORE_W


def test_caps_second_sweep_on_gpu_names_pid_of_first(testbed):
    first = testbed.start_capped_sweep("0", "300")
    code, err = testbed.start_sweep("all", "400").wait()

    assert code == 1
    assert f"process {first.process.pid} holds the power limit of GPU 0" in err
    assert testbed.limits_w() == [300, 500]
    other = testbed.start_sweep("1", "400")
    assert other.read_status() == "ready"
    assert other.advance() == "ready"
    assert testbed.limits_w() == [300, 400]
    assert (other.advance(), first.advance()) == ("left", "left")
    assert testbed.limits_w() == BEFORE_W


def test_caps_unknown_gpu_is_named(testbed):
    code, err = testbed.start_sweep("7", "300").wait()

    assert code == 1
    assert "GPU 7" in err
    assert "Traceback" not in err


def test_caps_show_without_driver_fails(nvml_testbed):
    outcome = nvml_testbed.start_sweep("all", "300", WATTLINE_SIMULATION="/nowhere").wait()

    assert outcome[0] == 1
    assert "cannot use NVML: no NVIDIA driver" in outcome[1]


def test_caps_show_prints_one_line_per_gpu(testbed):
    lines = testbed.caps("show").stdout.splitlines()

    assert len(lines) == 2
    assert lines[1].split(None, 4)[:4] == ["GPU", "1", "(SIMULATED", "NVIDIA"]
    assert lines[1].endswith("500 W of 200 to 700 W, default 700 W")
