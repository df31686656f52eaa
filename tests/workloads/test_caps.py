from __future__ import annotations

import contextlib
import json
import os
import signal

import pytest

from exporter.contract import simulation
from exporter.contract.simulation import Fault, Simulation
from tests.workloads.sweeps import Bench, wait_until
from workloads import caps
from workloads.caps import Cap, CapsError
from workloads.limits import caps_journal

BEFORE_W = [700.0, 500.0]


@pytest.fixture
def cards(tmp_path):
    """Two simulated H200, the second of which somebody has limited to 500 W."""
    path = tmp_path / simulation.FILE_NAME
    simulation.create(path, simulation.make_gpus(2, simulation.PRODUCTS["H200"]), simulation.boottime())
    with Simulation.open(path) as opened:
        opened.set_limit(1, 500)
        yield opened


@pytest.fixture(params=["nvml", "state file"])
def bench(cards, tmp_path, request):
    opened = Bench(cards, tmp_path / "state", through_nvml=request.param == "nvml")
    yield opened
    opened.close()


@pytest.fixture
def driver(cards, tmp_path):
    """As `bench`, by the driver alone."""
    opened = Bench(cards, tmp_path / "state", through_nvml=True)
    yield opened
    opened.close()


def watts(value):
    return Cap("power_limit_watts", float(value))


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
    sweep = bench.sweep("1", "300")
    sweep.heard()
    sweep.go_on()

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
    sweep = driver.sweep("all", "300")
    sweep.heard()
    sweep.go_on()
    assert driver.limits_w() == [300, 300]
    sweep.process.send_signal(number)

    code, err = sweep.end()
    assert (code, "Traceback" in err) == (-number, False)
    assert driver.limits_w() == BEFORE_W
    assert not driver.has_journal()


def test_an_exception_ends_the_sweep_and_the_limits_are_back(driver):
    sweep = driver.sweep("all", "300", "400")
    sweep.heard()
    sweep.go_on()
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
    sweep = bench.sweep("all", "300")
    sweep.heard()
    sweep.go_on()
    code, err = sweep.end()

    assert code == 1
    assert "GPU 1 (SIMULATED NVIDIA H200) stands at 500 W though it was set to 300 W" in err
    assert bench.limits_w() == BEFORE_W
    assert not bench.has_journal()


def test_a_card_that_is_lost_between_two_caps_is_named_and_the_others_are_put_back(bench):
    sweep = bench.sweep("all", "300", "400")
    sweep.heard()
    sweep.go_on()
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
    sweep = bench.sweep("all", "300", "400")
    sweep.heard()
    sweep.go_on()
    bench.simulation.set_limit(0, 350)
    sweep.go_on()
    code, err = sweep.end()

    assert code == 1
    assert "GPU 0 (SIMULATED NVIDIA H200) stands at 350 W though it was set to 300 W" in err
    assert bench.limits_w() == BEFORE_W


def test_two_sweeps_on_one_card_are_refused_by_the_pid_of_the_first(bench):
    first = bench.sweep("0", "300")
    first.heard()
    first.go_on()
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


def test_what_a_killed_sweep_and_its_killed_guardian_left_is_put_back_by_hand(bench):
    sweep = bench.sweep("all", "300")
    sweep.heard()
    sweep.go_on()
    bench.kill_both(sweep)
    assert bench.limits_w() == [300, 300]
    shown = json.loads(bench.caps("show", "--format", "json").stdout)
    restored = bench.caps("restore")

    assert [(row["power_limit_watts"], row["before_watts"]) for row in shown] == [(300, 700), (300, 500)]
    assert [row["holder_pid"] for row in shown] == [sweep.process.pid] * 2
    assert restored.returncode == 0
    assert "put back: GPU 0 (SIMULATED NVIDIA H200) at 700 W, GPU 1 (SIMULATED NVIDIA H200) at 500 W" in restored.stderr
    assert bench.limits_w() == BEFORE_W
    assert not bench.has_journal()
    assert "nothing to put back" in bench.caps("restore").stderr


def test_what_a_killed_sweep_left_is_put_back_before_the_next(bench):
    killed = bench.sweep("all", "300")
    killed.heard()
    killed.go_on()
    bench.kill_both(killed)
    sweep = bench.sweep("1", "400")

    assert sweep.heard() == "ready"
    assert bench.limits_w() == BEFORE_W
    assert sweep.go_on() == "ready"
    assert bench.limits_w() == [700, 400]
    assert sweep.go_on() == "left"
    assert f"process {killed.process.pid} had set it" in sweep.end()[1]
    assert bench.limits_w() == BEFORE_W


def test_restore_leaves_a_sweep_at_work_alone(driver):
    sweep = driver.sweep("all", "300")
    sweep.heard()
    sweep.go_on()
    restored = driver.caps("restore")

    assert restored.returncode == 1
    assert f"process {sweep.process.pid} is at work" in restored.stderr
    assert driver.limits_w() == [300, 300]
    assert driver.caps("restore", "--force").returncode == 0
    assert driver.limits_w() == BEFORE_W


def test_of_a_holder_in_another_container_it_is_not_known_that_it_has_gone(driver):
    sweep = driver.sweep("0", "300")
    sweep.heard()
    sweep.go_on()
    driver.kill_both(sweep)
    driver.rewrite_journal(pid_namespace="pid:[1]")
    code, err = driver.sweep("0", "400").end()

    assert code == 1
    assert "where it is of a container that has gone: workloads caps restore --force" in err
    assert driver.caps("restore", "--force").returncode == 0
    assert driver.limits_w() == BEFORE_W


def test_after_a_reboot_only_the_journal_goes_as_the_driver_has_reset_the_limit(driver):
    sweep = driver.sweep("1", "300")
    sweep.heard()
    sweep.go_on()
    driver.kill_both(sweep)
    driver.rewrite_journal(boot_id="another")
    driver.simulation.set_limit(1, 700)

    assert driver.caps("restore").returncode == 0
    assert driver.limits_w() == [700, 700]
    assert not driver.has_journal()


def test_a_cap_that_outlived_a_reboot_is_put_back(driver):
    sweep = driver.sweep("1", "300")
    sweep.heard()
    sweep.go_on()
    driver.kill_both(sweep)
    driver.rewrite_journal(boot_id="another", pid=os.getpid())

    assert driver.caps("restore").returncode == 0
    assert driver.limits_w() == BEFORE_W


def test_a_clock_is_locked_on_every_card_and_afterwards_as_the_driver_has_it(bench):
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


def test_a_clock_that_a_killed_sweep_left_locked_is_unlocked(bench):
    sweep = bench.sweep("1", "990e6")
    sweep.heard()
    sweep.go_on()
    assert bench.clocks_mhz() == [0, 990]
    sweep.process.kill()
    sweep.end()

    assert wait_until(lambda: not bench.has_journal())
    assert bench.clocks_mhz() == [0, 0]
    assert bench.limits_w() == BEFORE_W


def test_a_clock_that_somebody_else_locked_is_left_alone_by_a_sweep_of_power_limits(bench):
    bench.simulation.lock_clock(0, 1_500)
    sweep = bench.sweep("all", "300")
    sweep.heard()
    sweep.go_on()
    sweep.go_on()

    assert sweep.end()[0] == 0
    assert bench.clocks_mhz() == [1_500, 0]


def test_a_clock_that_the_card_does_not_have_is_refused_with_the_nearest(bench):
    code, err = bench.sweep("all", "1000e6").end()

    assert code == 1
    assert err == (
        "GPU 0 (SIMULATED NVIDIA H200) has no SM clock of 1000 MHz but 345 to 1980 MHz, and the nearest is 1005 MHz\n"
    )


def test_a_busy_card_that_runs_faster_than_it_was_locked_to_is_found_out(bench):
    bench.simulation.drive(0, 1.0, pid=os.getpid())
    bench.simulation.set_fault(0, Fault.UNMOVED, on=True)
    sweep = bench.sweep("0", "990e6")
    sweep.heard()
    sweep.go_on()
    code, err = sweep.end()

    assert code == 1
    assert "GPU 0 (SIMULATED NVIDIA H200) runs at 1980 MHz though it was locked to 990 MHz" in err
    assert bench.limits_w() == BEFORE_W


def test_a_journal_that_cannot_be_read_stops_the_next_sweep_with_its_path(driver):
    driver.journals.mkdir(parents=True)
    broken = driver.journals / "1-2.json"
    broken.write_text('{"holder"')
    code, err = driver.sweep("all", "300").end()

    assert code == 1
    assert f"the journal {broken} cannot be read" in err
    assert "workloads caps show" in err
    assert driver.limits_w() == BEFORE_W


def test_a_journal_that_cannot_be_read_hides_no_other_from_who_restores(driver):
    sweep = driver.sweep("all", "300")
    sweep.heard()
    sweep.go_on()
    driver.kill_both(sweep)
    broken = driver.journals / "1-2.json"  # before the other one in any order
    broken.write_text('{"holder"')
    restored = driver.caps("restore")

    assert restored.returncode == 1
    assert f"the journal {broken} cannot be read" in restored.stderr
    assert driver.limits_w() == BEFORE_W
    assert list(driver.journals.glob("*.json")) == [broken]


def test_a_journal_that_goes_while_it_is_looked_at_stops_no_sweep(cards, tmp_path, monkeypatch):
    monkeypatch.setattr(caps_journal, "journals", lambda folder: [folder / "1-2.json"])
    with contextlib.closing(caps.cards(None, str(cards.path))) as both, caps.restoring(both, tmp_path) as setter:
        setter.apply(watts(300))
    assert [gpu.limit_w for gpu in cards.gpus] == BEFORE_W


def test_who_checks_writes_nothing_to_cards_that_another_may_hold(cards, tmp_path):
    path = str(cards.path)
    with contextlib.closing(caps.cards(None, path)) as held, contextlib.closing(caps.cards(None, path)) as wanted:
        wanted.set_power_limit = lambda uuid, set_w: pytest.fail(f"{uuid} was set to {set_w} W")
        with caps.restoring(held, tmp_path) as setter:
            setter.apply(watts(300))
            caps.check(wanted, [watts(400)])
            with pytest.raises(CapsError, match="holds caps already"), caps.restoring(wanted, tmp_path):
                pass


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


def test_a_forked_child_that_leaves_puts_nothing_back(driver, write):
    script = write(
        "import os\n"
        "from workloads import caps\n"
        "cards = caps.cards(None, os.environ['WATTLINE_SIMULATION'])\n"
        "with caps.restoring(cards) as setter:\n"
        "    setter.apply(caps.Cap('power_limit_watts', 300.0))\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        os.waitpid(child, 0)\n"
        "        print([cards.power(uuid).now_w for uuid in cards.uuids])\n"
    )

    assert driver.python(script).stdout == "[300.0, 300.0]\n"
    assert driver.limits_w() == BEFORE_W


def test_a_process_holds_caps_once(cards, tmp_path):
    path = str(cards.path)
    with (
        contextlib.closing(caps.cards(["0"], path)) as one,
        contextlib.closing(caps.cards(["1"], path)) as other,
        caps.restoring(one, tmp_path),
        pytest.raises(CapsError, match="holds caps already"),
        caps.restoring(other, tmp_path),
    ):
        pass


def test_no_cap_puts_back_what_stood_before_between_two(cards, tmp_path):
    with contextlib.closing(caps.cards(None, str(cards.path))) as both, caps.restoring(both, tmp_path) as setter:
        setter.apply(watts(300))
        setter.apply(None)
        assert [gpu.limit_w for gpu in cards.gpus] == BEFORE_W
        setter.apply(watts(400))
        assert [gpu.limit_w for gpu in cards.gpus] == [400, 400]
    assert [gpu.limit_w for gpu in cards.gpus] == BEFORE_W


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_set(cards, tmp_path):
    (tmp_path / "file").touch()
    with (
        contextlib.closing(caps.cards(None, str(cards.path))) as both,
        pytest.raises(CapsError, match="set XDG_STATE_HOME"),
        caps.restoring(both, tmp_path / "file" / "caps"),
    ):
        pass


def test_without_its_guardian_a_sweep_sets_no_other_cap_and_still_puts_back_what_stood_before(cards, tmp_path):
    with contextlib.closing(caps.cards(None, str(cards.path))) as both, caps.restoring(both, tmp_path) as setter:
        setter.apply(watts(300))
        os.kill(setter._guardian.pid, signal.SIGKILL)
        assert wait_until(lambda: not setter._guardian.watches)
        with pytest.raises(CapsError, match="the guardian that takes the caps off again was ended"):
            setter.apply(watts(400))
    assert [gpu.limit_w for gpu in cards.gpus] == BEFORE_W
