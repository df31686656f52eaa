"""The caps of a sweep, set and taken off, on simulated cards and on the fake driver."""

from __future__ import annotations

import signal

import pytest

from exporter.simulation import Fault

BEFORE_W = [700.0, 500.0]


def test_caps_are_set_on_all_gpus_and_restored(bench):
    sweep = bench.sweep("all", "300", "450")

    assert sweep.heard() == "ready"
    assert bench.limits_w() == BEFORE_W
    assert sweep.go_on() == "ready"
    assert bench.limits_w() == [300, 300]
    assert sweep.go_on() == "ready"
    assert bench.limits_w() == [450, 450]
    assert sweep.go_on() == "left"
    assert sweep.end()[0] == 0
    assert bench.limits_w() == BEFORE_W
    assert not bench.has_journal()


def test_caps_are_set_on_selected_gpus_only(bench):
    sweep = bench.capped("1", "300")

    assert bench.limits_w() == [700, 300]
    assert sweep.go_on() == "left"
    assert bench.limits_w() == BEFORE_W


def test_caps_journal_is_written_before_first_change(bench):
    sweep = bench.sweep("all", "300")
    sweep.heard()

    assert [card["power_limit_w"] for card in bench.journal()["cards"]] == BEFORE_W
    assert bench.journal()["holder"]["pid"] == sweep.process.pid
    assert bench.limits_w() == BEFORE_W


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_caps_signal_restores_limits(driver, number):
    sweep = driver.capped("all", "300")
    assert driver.limits_w() == [300, 300]
    sweep.process.send_signal(number)

    code, err = sweep.end()
    assert (code, "Traceback" in err) == (-number, False)
    assert driver.limits_w() == BEFORE_W
    assert not driver.has_journal()


def test_caps_exception_restores_limits(driver):
    sweep = driver.capped("all", "300", "400")
    sweep.go_on("fail")

    code, err = sweep.end()
    assert code == 1
    assert err.endswith("the sweep failed\n")
    assert driver.limits_w() == BEFORE_W


@pytest.mark.parametrize("cap", ["199", "701"])
def test_check_caps_out_of_range_fails_before_change(bench, cap):
    code, err = bench.sweep("all", "300", cap).end()

    assert (code, bench.has_journal()) == (1, False)
    assert err == f"GPU 0 (SIMULATED NVIDIA H200) supports power limits of 200 to 700 W, not {cap} W\n"
    assert bench.limits_w() == BEFORE_W


def test_caps_without_permission_names_capability(bench):
    bench.simulation.set_fault(1, Fault.FORBIDDEN, on=True)
    code, err = bench.sweep("all", "300").end()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200)" in err
    assert (
        "root or the capability CAP_SYS_ADMIN is required; use sudo -E, or a container with --cap-add SYS_ADMIN" in err
    )
    assert not bench.has_journal()


def test_caps_ineffective_limit_fails_and_restores_all(bench):
    bench.simulation.set_fault(1, Fault.UNMOVED, on=True)
    sweep = bench.capped("all", "300")
    code, err = sweep.end()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200) has a power limit of 500 W although 300 W was set" in err
    assert bench.limits_w() == BEFORE_W
    assert not bench.has_journal()


def test_caps_lost_gpu_is_named_and_others_are_restored(bench):
    sweep = bench.capped("all", "300", "400")
    bench.simulation.set_fault(1, Fault.LOST, on=True)
    sweep.go_on()
    code, err = sweep.end()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200)" in err
    assert "lost" in err
    assert "try workloads caps restore" in err
    assert bench.limits_w() == [700, 300]
    bench.simulation.set_fault(1, Fault.LOST, on=False)
    assert bench.caps("restore").returncode == 0
    assert bench.limits_w() == BEFORE_W


def test_caps_confirm_detects_foreign_change(bench):
    sweep = bench.capped("all", "300", "400")
    bench.simulation.set_limit(0, 350)
    sweep.go_on()
    code, err = sweep.end()

    assert code == 1
    assert "GPU 0 (SIMULATED NVIDIA H200) has a power limit of 350 W although 300 W was set" in err
    assert bench.limits_w() == BEFORE_W


def test_caps_second_sweep_on_gpu_names_pid_of_first(bench):
    first = bench.capped("0", "300")
    code, err = bench.sweep("all", "400").end()

    assert code == 1
    assert f"process {first.process.pid} holds the power limit of GPU 0" in err
    assert bench.limits_w() == [300, 500]
    other = bench.sweep("1", "400")
    assert other.heard() == "ready"
    assert other.go_on() == "ready"
    assert bench.limits_w() == [300, 400]
    assert (other.go_on(), first.go_on()) == ("left", "left")
    assert bench.limits_w() == BEFORE_W


def test_caps_unknown_gpu_is_named(bench):
    code, err = bench.sweep("7", "300").end()

    assert code == 1
    assert "GPU 7" in err
    assert "Traceback" not in err


def test_caps_show_without_driver_fails(driver):
    shown = driver.sweep("all", "300", WATTLINE_SIMULATION="/nowhere").end()

    assert shown[0] == 1
    assert "cannot set power limits: no NVIDIA driver" in shown[1]


def test_caps_show_prints_one_line_per_gpu(bench):
    lines = bench.caps("show").stdout.splitlines()

    assert len(lines) == 2
    assert lines[1].split(None, 4)[:4] == ["GPU", "1", "(SIMULATED", "NVIDIA"]
    assert lines[1].endswith("500 W of 200 to 700 W, default 700 W")
