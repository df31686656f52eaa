"""The caps of a sweep, set and taken off, on simulated cards and on the fake driver."""

from __future__ import annotations

import signal

import pytest

from exporter.simulation import Fault

BEFORE_W = [700.0, 500.0]


def test_every_card_has_the_cap_and_afterwards_what_it_had_before(bench):
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


def test_only_the_cards_that_were_asked_for_are_set(bench):
    sweep = bench.capped("1", "300")

    assert bench.limits_w() == [700, 300]
    assert sweep.go_on() == "left"
    assert bench.limits_w() == BEFORE_W


def test_the_journal_is_on_disk_before_anything_is_set(bench):
    sweep = bench.sweep("all", "300")
    sweep.heard()

    assert [card["power_limit_w"] for card in bench.journal()["cards"]] == BEFORE_W
    assert bench.journal()["holder"]["pid"] == sweep.process.pid
    assert bench.limits_w() == BEFORE_W


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_sweep_and_the_limits_are_back(driver, number):
    sweep = driver.capped("all", "300")
    assert driver.limits_w() == [300, 300]
    sweep.process.send_signal(number)

    code, err = sweep.end()
    assert (code, "Traceback" in err) == (-number, False)
    assert driver.limits_w() == BEFORE_W
    assert not driver.has_journal()


def test_an_exception_ends_the_sweep_and_the_limits_are_back(driver):
    sweep = driver.capped("all", "300", "400")
    sweep.go_on("fail")

    code, err = sweep.end()
    assert code == 1
    assert err.endswith("the sweep failed\n")
    assert driver.limits_w() == BEFORE_W


@pytest.mark.parametrize("cap", ["199", "701"])
def test_a_cap_outside_of_what_the_card_takes_is_refused_before_anything_is_set(bench, cap):
    code, err = bench.sweep("all", "300", cap).end()

    assert (code, bench.has_journal()) == (1, False)
    assert err == f"GPU 0 (SIMULATED NVIDIA H200) takes a power limit of 200 to 700 W, not {cap} W\n"
    assert bench.limits_w() == BEFORE_W


def test_without_permission_the_capability_is_named_before_anything_is_set(bench):
    bench.simulation.set_fault(1, Fault.FORBIDDEN, on=True)
    code, err = bench.sweep("all", "300").end()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200)" in err
    assert "takes root, or the capability CAP_SYS_ADMIN: use sudo -E, or a container with --cap-add SYS_ADMIN" in err
    assert not bench.has_journal()


def test_a_card_that_stays_as_it_was_is_found_out_and_none_is_left_capped(bench):
    bench.simulation.set_fault(1, Fault.UNMOVED, on=True)
    sweep = bench.capped("all", "300")
    code, err = sweep.end()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200) stands at 500 W though it was set to 300 W" in err
    assert bench.limits_w() == BEFORE_W
    assert not bench.has_journal()


def test_a_card_that_is_lost_between_two_caps_is_named_and_the_others_are_put_back(bench):
    sweep = bench.capped("all", "300", "400")
    bench.simulation.set_fault(1, Fault.LOST, on=True)
    sweep.go_on()
    code, err = sweep.end()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200)" in err
    assert "lost" in err
    assert "try: workloads caps restore" in err
    assert bench.limits_w() == [700, 300]
    bench.simulation.set_fault(1, Fault.LOST, on=False)
    assert bench.caps("restore").returncode == 0
    assert bench.limits_w() == BEFORE_W


def test_somebody_else_setting_the_limit_meanwhile_is_found_out(bench):
    sweep = bench.capped("all", "300", "400")
    bench.simulation.set_limit(0, 350)
    sweep.go_on()
    code, err = sweep.end()

    assert code == 1
    assert "GPU 0 (SIMULATED NVIDIA H200) stands at 350 W though it was set to 300 W" in err
    assert bench.limits_w() == BEFORE_W


def test_two_sweeps_on_one_card_are_refused_by_the_pid_of_the_first(bench):
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


def test_a_gpu_that_is_not_there_is_named(bench):
    code, err = bench.sweep("7", "300").end()

    assert code == 1
    assert "GPU 7" in err
    assert "Traceback" not in err


def test_where_there_is_no_driver_that_is_said(driver):
    shown = driver.sweep("all", "300", WATTLINE_SIMULATION="/nowhere").end()

    assert shown[0] == 1
    assert "there is no NVIDIA driver to set power limits with" in shown[1]


def test_caps_show_is_a_line_a_card(bench):
    lines = bench.caps("show").stdout.splitlines()

    assert len(lines) == 2
    assert lines[1].split(None, 4)[:4] == ["GPU", "1", "(SIMULATED", "NVIDIA"]
    assert lines[1].endswith("500 W of 200 to 700 W, default 700 W")
