"""What a sweep that was killed left: its journal, and how the caps come off."""

from __future__ import annotations

import json
import os

BEFORE_W = [700.0, 500.0]


def test_what_a_killed_sweep_and_its_killed_guardian_left_is_put_back_by_hand(bench):
    sweep = bench.capped("all", "300")
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
    killed = bench.capped("all", "300")
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
    sweep = driver.capped("all", "300")
    restored = driver.caps("restore")

    assert restored.returncode == 1
    assert f"process {sweep.process.pid} is at work" in restored.stderr
    assert driver.limits_w() == [300, 300]
    assert driver.caps("restore", "--force").returncode == 0
    assert driver.limits_w() == BEFORE_W


def test_of_a_holder_in_another_container_it_is_not_known_that_it_has_gone(driver):
    sweep = driver.capped("0", "300")
    driver.kill_both(sweep)
    driver.rewrite_journal(pid_namespace="pid:[1]")
    code, err = driver.sweep("0", "400").end()

    assert code == 1
    assert "where it is of a container that has gone: workloads caps restore --force" in err
    assert driver.caps("restore", "--force").returncode == 0
    assert driver.limits_w() == BEFORE_W


def test_after_a_reboot_only_the_journal_goes_as_the_driver_has_reset_the_limit(driver):
    sweep = driver.capped("1", "300")
    driver.kill_both(sweep)
    driver.rewrite_journal(boot_id="another")
    driver.simulation.set_limit(1, 700)

    assert driver.caps("restore").returncode == 0
    assert driver.limits_w() == [700, 700]
    assert not driver.has_journal()


def test_a_cap_that_outlived_a_reboot_is_put_back(driver):
    sweep = driver.capped("1", "300")
    driver.kill_both(sweep)
    driver.rewrite_journal(boot_id="another", pid=os.getpid())

    assert driver.caps("restore").returncode == 0
    assert driver.limits_w() == BEFORE_W


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
    sweep = driver.capped("all", "300")
    driver.kill_both(sweep)
    broken = driver.journals / "1-2.json"  # before the other one in any order
    broken.write_text('{"holder"')
    restored = driver.caps("restore")

    assert restored.returncode == 1
    assert f"the journal {broken} cannot be read" in restored.stderr
    assert driver.limits_w() == BEFORE_W
    assert list(driver.journals.glob("*.json")) == [broken]


def test_a_forked_child_that_leaves_puts_nothing_back(driver, write):
    script = write(
        "import os\n"
        "from workloads.caps import apply as caps\n"
        "from workloads.caps.gpu_set import Cap\n"
        "from workloads.caps.open_gpus import open_gpu_set\n"
        "cards = open_gpu_set(None, os.environ['WATTLINE_SIMULATION'])\n"
        "with caps.restoring_caps(cards) as setter:\n"
        "    setter.apply(Cap('power_limit_watts', 300.0))\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        os.waitpid(child, 0)\n"
        "        print([cards.power(uuid).now_w for uuid in cards.uuids])\n"
    )

    assert driver.python(script).stdout == "[300.0, 300.0]\n"
    assert driver.limits_w() == BEFORE_W
