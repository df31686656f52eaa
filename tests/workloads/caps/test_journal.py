"""Journal of a killed sweep, and restoration of the limits."""

from __future__ import annotations

import json
import os

BEFORE_W = [700.0, 500.0]


def test_restore_command_restores_limits_of_killed_sweep(testbed):
    sweep = testbed.start_capped_sweep("all", "300")
    testbed.kill_both(sweep)
    assert testbed.limits_w() == [300, 300]
    gpus = json.loads(testbed.caps("show", "--format", "json").stdout)
    restored = testbed.caps("restore")

    assert [(row["power_limit_watts"], row["before_watts"]) for row in gpus] == [
        (300, 700),
        (300, 500),
    ]
    assert [row["holder_pid"] for row in gpus] == [sweep.process.pid] * 2
    assert restored.returncode == 0
    assert (
        "restored: GPU 0 (SIMULATED NVIDIA H200) at 700 W, GPU 1 (SIMULATED NVIDIA H200) at 500 W"
        in restored.stderr
    )
    assert testbed.limits_w() == BEFORE_W
    assert not testbed.has_journal()
    assert "nothing to restore" in testbed.caps("restore").stderr


def test_journal_of_killed_sweep_is_restored_by_next(testbed):
    killed = testbed.start_capped_sweep("all", "300")
    testbed.kill_both(killed)
    sweep = testbed.start_sweep("1", "400")

    assert sweep.read_status() == "ready"
    assert testbed.limits_w() == BEFORE_W
    assert sweep.advance() == "ready"
    assert testbed.limits_w() == [700, 400]
    assert sweep.advance() == "left"
    assert f"the caps were set by process {killed.process.pid}" in sweep.wait()[1]
    assert testbed.limits_w() == BEFORE_W


def test_restore_command_keeps_running_sweep(nvml_testbed):
    sweep = nvml_testbed.start_capped_sweep("all", "300")
    restored = nvml_testbed.caps("restore")

    assert restored.returncode == 1
    assert f"process {sweep.process.pid} is running" in restored.stderr
    assert nvml_testbed.limits_w() == [300, 300]
    assert nvml_testbed.caps("restore", "--force").returncode == 0
    assert nvml_testbed.limits_w() == BEFORE_W


def test_holder_in_other_container_counts_as_alive(nvml_testbed):
    sweep = nvml_testbed.start_capped_sweep("0", "300")
    nvml_testbed.kill_both(sweep)
    nvml_testbed.rewrite_journal(pid_namespace="pid:[1]")
    code, err = nvml_testbed.start_sweep("0", "400").wait()

    assert code == 1
    assert "for an ended container use workloads caps restore --force" in err
    assert nvml_testbed.caps("restore", "--force").returncode == 0
    assert nvml_testbed.limits_w() == BEFORE_W


def test_journal_after_reboot_with_reset_limit_is_removed(nvml_testbed):
    sweep = nvml_testbed.start_capped_sweep("1", "300")
    nvml_testbed.kill_both(sweep)
    nvml_testbed.rewrite_journal(boot_id="another")
    nvml_testbed.simulation.set_limit(1, 700)

    assert nvml_testbed.caps("restore").returncode == 0
    assert nvml_testbed.limits_w() == [700, 700]
    assert not nvml_testbed.has_journal()


def test_journal_after_reboot_with_kept_limit_is_restored(nvml_testbed):
    sweep = nvml_testbed.start_capped_sweep("1", "300")
    nvml_testbed.kill_both(sweep)
    nvml_testbed.rewrite_journal(boot_id="another", pid=os.getpid())

    assert nvml_testbed.caps("restore").returncode == 0
    assert nvml_testbed.limits_w() == BEFORE_W


def test_journal_unreadable_stops_next_sweep(nvml_testbed):
    nvml_testbed.journals.mkdir(parents=True)
    broken = nvml_testbed.journals / "1-2.json"
    broken.write_text('{"holder"')
    code, err = nvml_testbed.start_sweep("all", "300").wait()

    assert code == 1
    assert f"cannot read journal {broken}" in err
    assert "workloads caps show" in err
    assert nvml_testbed.limits_w() == BEFORE_W


def test_restore_command_continues_after_unreadable_journal(nvml_testbed):
    sweep = nvml_testbed.start_capped_sweep("all", "300")
    nvml_testbed.kill_both(sweep)
    broken = nvml_testbed.journals / "1-2.json"  # sorts before the other journal
    broken.write_text('{"holder"')
    restored = nvml_testbed.caps("restore")

    assert restored.returncode == 1
    assert f"cannot read journal {broken}" in restored.stderr
    assert nvml_testbed.limits_w() == BEFORE_W
    assert list(nvml_testbed.journals.glob("*.json")) == [broken]


def test_restoring_caps_forked_child_restores_nothing(nvml_testbed, write):
    script = write(
        "import os\n"
        "from wattline_workloads.caps import apply as caps\n"
        "from wattline_workloads.caps.gpu_set import Cap\n"
        "from wattline_workloads.caps.gpu_set import open_gpu_set\n"
        "gpu_set = open_gpu_set(None, os.environ['WATTLINE_SIMULATION'])\n"
        "with caps.restoring_caps(gpu_set) as setter:\n"
        "    setter.apply(Cap('power_limit_watts', 300.0))\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        os.waitpid(child, 0)\n"
        "        print([gpu_set.power(uuid).now_w for uuid in gpu_set.uuids])\n"
    )

    assert nvml_testbed.python(script).stdout == "[300.0, 300.0]\n"
    assert nvml_testbed.limits_w() == BEFORE_W
