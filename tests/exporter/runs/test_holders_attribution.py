"""Attribution of GPU and CPU energy to runs of real processes."""

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from tests.daemon import begin, daemon, end
from tests.exporter.api import UUIDS
from tests.polling import eventually
from wattline_exporter.simulation import Simulation

OPTIONS = ("--simulate", "2xH200", "--no-collector.host", "--no-history")
ATTRIBUTED, GPU_ENERGY = (
    "wattline_run_attributed_energy_joules_total",
    "wattline_gpu_energy_joules_total",
)


@contextmanager
def processes(number):
    started = [
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        for _ in range(number)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def attributed_j(metrics, policy, device):
    return {
        labels["run_id"]: value
        for labels, value in metrics.get(ATTRIBUTED, ())
        if (labels["policy"], labels["device"]) == (policy, device)
    }


def gpu_j(metrics, uuid):
    return next(value for labels, value in metrics[GPU_ENERGY] if labels["uuid"] == uuid)


def test_attributed_energy_of_all_runs_adds_up_to_each_gpu_in_every_scrape(tmp_path):
    with (
        daemon(tmp_path, *OPTIONS) as exporter,
        exporter.simulation() as simulation,
        processes(2) as (one, other),
    ):
        simulation.drive(0, 0.4, one.pid, 1 << 30)
        simulation.drive(0, 0.2, other.pid, 1 << 30)
        runs = []
        exporter.wait_for_metric(bool, GPU_ENERGY, gpu="1")
        for n in range(6):
            metrics = exporter.metrics()
            for uuid in UUIDS[:2]:
                for policy in ("idle_apart", "idle_shared"):
                    assert sum(attributed_j(metrics, policy, uuid).values()) == pytest.approx(
                        gpu_j(metrics, uuid), abs=1e-5
                    )
            if n in (1, 2):
                runs.append(begin(exporter, pids=[one.pid if n == 1 else other.pid])["run_id"])
            if n == 4:
                end(exporter, runs[0])
            time.sleep(1.0)
        attributed = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])

    assert set(attributed) == {"", *runs}


def test_attribution_of_two_runs_on_a_gpu_follows_kernel_time(tmp_path):
    with (
        daemon(tmp_path, *OPTIONS) as exporter,
        exporter.simulation() as simulation,
        processes(2) as (one, other),
    ):
        exporter.wait_for_metric(bool, "wattline_idle_power_watts", device=UUIDS[0])  # 78 W
        drive(simulation, one.pid, 0.6)
        drive(simulation, other.pid, 0.2)
        time.sleep(1.5)
        first, second = (
            begin(exporter, gpus=["0"], pids=[process.pid])["run_id"] for process in (one, other)
        )
        time.sleep(2.0)
        before = exporter.metrics()
        time.sleep(7.0)
        after = exporter.metrics()
        ended = end(exporter, first)
        final = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])

    assert ended["attributed_energy_joules"]["gpu"] == {UUIDS[0]: pytest.approx(final[first])}
    idle_w = exporter_idle(after)
    assert idle_w == pytest.approx(78.0, abs=1.0)
    apart, shared = (
        {
            run: attributed_j(after, p, UUIDS[0])[run] - attributed_j(before, p, UUIDS[0])[run]
            for run in (first, second, "")
        }
        for p in ("idle_apart", "idle_shared")
    )
    total_j = gpu_j(after, UUIDS[0]) - gpu_j(before, UUIDS[0])
    assert apart[first] / apart[second] == pytest.approx(3.0, rel=0.05)
    assert shared[first] - apart[first] == pytest.approx(shared[second] - apart[second], rel=0.05)
    elapsed_s = total_j / (78.0 + (700.0 - 78.0) * 0.8)
    assert elapsed_s > 5.0
    assert apart[""] == pytest.approx(idle_w * elapsed_s, rel=0.05)
    assert shared[""] == pytest.approx(0.0, abs=0.01 * total_j)


def exporter_idle(metrics):
    return next(
        value
        for labels, value in metrics["wattline_idle_power_watts"]
        if labels["device"] == UUIDS[0]
    )


def drive(simulation: Simulation, pid: int, share: float) -> None:
    simulation.drive(0, share, pid, 1 << 30)


def test_attribution_single_run_gets_its_gpus_energy_within_one_update(tmp_path):
    with (
        daemon(tmp_path, *OPTIONS) as exporter,
        exporter.simulation() as simulation,
        processes(1) as (one,),
    ):
        drive(simulation, one.pid, 0.8)
        time.sleep(2.0)
        run_id = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
        time.sleep(8.0)
        run = end(exporter, run_id)
        attributed = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])

    joules = run["energy_joules"]["gpu"][UUIDS[0]]
    assert attributed[run_id] == pytest.approx(joules, rel=0.04)


@pytest.mark.parametrize("after_tick_s", [0.3, 0.8])
def test_attribution_single_run_stops_at_death_of_its_processes(tmp_path, after_tick_s):
    """The run ends right after its process, so no sample with the process comes before the end."""
    with (
        daemon(tmp_path, *OPTIONS) as exporter,
        exporter.simulation() as simulation,
        processes(1) as (one,),
    ):
        drive(simulation, one.pid, 0.8)
        time.sleep(2.0)
        run_id = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
        time.sleep(4.0 + after_tick_s)
        simulation.release(0, one.pid)
        one.kill()
        one.wait()
        run = end(exporter, run_id)
        attributed = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])

    lost_j = run["energy_joules"]["gpu"][UUIDS[0]] - attributed[run_id]
    power_w = run["energy_joules"]["gpu"][UUIDS[0]] / (4.0 + after_tick_s)
    assert abs(lost_j) < 0.2 * power_w


def test_attribution_dying_run_does_not_change_other_runs(tmp_path):
    """It is finalized eight seconds after its death; meanwhile one run ends and another one
    begins.
    """
    with (
        daemon(tmp_path, *OPTIONS) as exporter,
        exporter.simulation() as simulation,
        processes(2) as (one, dying),
    ):
        drive(simulation, one.pid, 0.8)
        dead = begin(exporter, gpus=["1"], pids=[dying.pid])["run_id"]
        before = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
        dying.kill()
        dying.wait()
        time.sleep(5.5)
        end(exporter, before)
        ended_j = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])[before]
        time.sleep(0.5)
        after = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
        eventually(
            lambda: exporter.get(f"/api/v1/runs/{dead}")[1]["state"] == "ended",
            "the dead run is finalized",
            exporter.log,
        )
        time.sleep(2.0)
        run = end(exporter, after)
        attributed = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])

    joules = run["energy_joules"]["gpu"][UUIDS[0]]
    assert attributed[before] == ended_j
    assert attributed[after] == pytest.approx(joules, abs=0.2 * joules / run["duration_seconds"])


def test_attribution_processes_that_died_in_downtime_get_no_energy(tmp_path):
    with processes(1) as (one,):
        with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation:
            drive(simulation, one.pid, 0.8)
            run_id = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
            time.sleep(2.5)
            before = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])[run_id]
        one.kill()
        one.wait()
        time.sleep(3.0)
        with daemon(tmp_path, *OPTIONS) as exporter:
            exporter.wait_for_metric(bool, GPU_ENERGY, gpu="0")
            first = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])[run_id]
            time.sleep(3.0)
            later = attributed_j(exporter.metrics(), "idle_shared", UUIDS[0])[run_id]

    power_w = before / 2.5
    assert before <= first <= before + 1.0 * power_w
    assert later == first


def test_attribution_of_cpu_energy_follows_cpu_time(tmp_path):
    sysfs = tmp_path / "sys"  # without RAPL and power PMU, which take precedence over the estimate
    sysfs.mkdir()
    burn = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        exporter = stack.enter_context(
            daemon(
                tmp_path,
                *OPTIONS,
                "--path.sysfs",
                str(sysfs),
                "--cpu.power-model",
                "idle=0,max=100",
            )
        )
        own_process, foreign = (stack.enter_context(subprocess.Popen(burn)) for _ in range(2))
        stack.callback(foreign.kill)
        stack.callback(own_process.kill)
        # the model needs two readings of the CPU time before the run can have the package
        eventually(
            lambda: "wattline_cpu_energy_joules_total" in exporter.metrics(),
            "CPU energy",
            exporter.log,
        )
        run_id = begin(exporter, pids=[own_process.pid])["run_id"]
        exporter.wait_for_metric(bool, ATTRIBUTED, policy="idle_shared", run_id=run_id, device="0")
        before, before_s = (
            attributed_j(exporter.metrics(), "idle_shared", "0"),
            cpu_s(own_process.pid),
        )
        time.sleep(7.0)
        after, after_s = (
            attributed_j(exporter.metrics(), "idle_shared", "0"),
            cpu_s(own_process.pid),
        )
        run = end(exporter, run_id)

    mine_j, rest_j = after[run_id] - before[run_id], after[""] - before[""]
    (mine_s, busy_s) = (b - a for a, b in zip(before_s, after_s, strict=True))
    assert mine_j / (mine_j + rest_j) == pytest.approx(mine_s / busy_s, rel=0.2)
    assert any("estimated from utilization" in note for note in run["notes"])


def cpu_s(pid):
    """Return the CPU seconds of the process and of all processes."""
    own, node = psutil.Process(pid).cpu_times(), psutil.cpu_times()
    return own.user + own.system, sum(
        node
    ) - node.idle - node.iowait - node.guest - node.guest_nice - node.steal
