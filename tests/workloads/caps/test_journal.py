"""What a sweep that was killed left: its journal, and how the caps come off."""

from __future__ import annotations

import json
import os

BEFORE_W = [700.0, 500.0]


def test_restore_command_restores_limits_of_killed_sweep(bench):
    sweep = bench.capped("all", "300")
    bench.kill_both(sweep)
    assert bench.limits_w() == [300, 300]
    shown = json.loads(bench.caps("show", "--format", "json").stdout)
    restored = bench.caps("restore")

    assert [(row["power_limit_watts"], row["before_watts"]) for row in shown] == [(300, 700), (300, 500)]
    assert [row["holder_pid"] for row in shown] == [sweep.process.pid] * 2
    assert restored.returncode == 0
    assert "restored: GPU 0 (SIMULATED NVIDIA H200) at 700 W, GPU 1 (SIMULATED NVIDIA H200) at 500 W" in restored.stderr
    assert bench.limits_w() == BEFORE_W
    assert not bench.has_journal()
    assert "nothing to restore" in bench.caps("restore").stderr


def test_journal_of_killed_sweep_is_restored_by_next(bench):
    killed = bench.capped("all", "300")
    bench.kill_both(killed)
    sweep = bench.sweep("1", "400")

    assert sweep.heard() == "ready"
    assert bench.limits_w() == BEFORE_W
    assert sweep.go_on() == "ready"
    assert bench.limits_w() == [700, 400]
    assert sweep.go_on() == "left"
    assert f"it was set by process {killed.process.pid}" in sweep.end()[1]
    assert bench.limits_w() == BEFORE_W


def test_restore_command_keeps_running_sweep(driver):
    sweep = driver.capped("all", "300")
    restored = driver.caps("restore")

    assert restored.returncode == 1
    assert f"process {sweep.process.pid} is running" in restored.stderr
    assert driver.limits_w() == [300, 300]
    assert driver.caps("restore", "--force").returncode == 0
    assert driver.limits_w() == BEFORE_W


def test_holder_in_other_container_counts_as_alive(driver):
    sweep = driver.capped("0", "300")
    driver.kill_both(sweep)
    driver.rewrite_journal(pid_namespace="pid:[1]")
    code, err = driver.sweep("0", "400").end()

    assert code == 1
    assert "for an ended container use workloads caps restore --force" in err
    assert driver.caps("restore", "--force").returncode == 0
    assert driver.limits_w() == BEFORE_W


def test_journal_after_reboot_with_reset_limit_is_removed(driver):
    sweep = driver.capped("1", "300")
    driver.kill_both(sweep)
    driver.rewrite_journal(boot_id="another")
    driver.simulation.set_limit(1, 700)

    assert driver.caps("restore").returncode == 0
    assert driver.limits_w() == [700, 700]
    assert not driver.has_journal()


def test_journal_after_reboot_with_kept_limit_is_restored(driver):
    sweep = driver.capped("1", "300")
    driver.kill_both(sweep)
    driver.rewrite_journal(boot_id="another", pid=os.getpid())

    assert driver.caps("restore").returncode == 0
    assert driver.limits_w() == BEFORE_W


def test_journal_unreadable_stops_next_sweep(driver):
    driver.journals.mkdir(parents=True)
    broken = driver.journals / "1-2.json"
    broken.write_text('{"holder"')
    code, err = driver.sweep("all", "300").end()

    assert code == 1
    assert f"cannot read journal {broken}" in err
    assert "workloads caps show" in err
    assert driver.limits_w() == BEFORE_W


def test_restore_command_continues_after_unreadable_journal(driver):
    sweep = driver.capped("all", "300")
    driver.kill_both(sweep)
    broken = driver.journals / "1-2.json"  # before the other one in any order
    broken.write_text('{"holder"')
    restored = driver.caps("restore")

    assert restored.returncode == 1
    assert f"cannot read journal {broken}" in restored.stderr
    assert driver.limits_w() == BEFORE_W
    assert list(driver.journals.glob("*.json")) == [broken]


def test_restoring_caps_forked_child_restores_nothing(driver, write):
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
