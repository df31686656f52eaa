"""Two runs on one GPU, driven by real processes: the parts that a scrape shows add up to the device, and are fair."""

import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from exporter.simulation import Simulation
from tests.daemon import begin, daemon, end, eventually
from tests.exporter.api import UUIDS

POWER_PMU = Path("/sys/bus/event_source/devices/power")
OPTIONS = ("--simulate", "2xH200", "--no-collector.host", "--no-history")
ATTRIBUTED, WHOLE = "wattline_run_attributed_energy_joules_total", "wattline_gpu_energy_joules_total"


@contextmanager
def processes(number):
    started = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(number)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def parts(found, policy, device):
    return {
        labels["run_id"]: value
        for labels, value in found.get(ATTRIBUTED, ())
        if (labels["policy"], labels["device"]) == (policy, device)
    }


def whole(found, uuid):
    return next(value for labels, value in found[WHOLE] if labels["uuid"] == uuid)


def test_attributed_energy_of_all_runs_adds_up_to_each_gpu_in_every_scrape(tmp_path):
    with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation, processes(2) as (one, other):
        simulation.drive(0, 0.4, one.pid, 1 << 30)
        simulation.drive(0, 0.2, other.pid, 1 << 30)
        runs = []
        exporter.wait_for_metric(bool, WHOLE, gpu="1")
        for n in range(6):
            found = exporter.metrics()
            for uuid in UUIDS[:2]:
                for policy in ("idle_apart", "idle_shared"):
                    assert sum(parts(found, policy, uuid).values()) == pytest.approx(whole(found, uuid), abs=1e-5)
            if n in (1, 2):
                runs.append(begin(exporter, pids=[one.pid if n == 1 else other.pid])["run_id"])
            if n == 4:
                end(exporter, runs[0])
            time.sleep(1.0)
        shown = parts(exporter.metrics(), "idle_shared", UUIDS[0])

    assert set(shown) == {"", *runs}


def test_attribution_of_two_runs_on_a_gpu_follows_kernel_time(tmp_path):
    with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation, processes(2) as (one, other):
        time.sleep(12.0)  # by then the idle power is known: 78 W
        drive(simulation, one.pid, 0.6)
        drive(simulation, other.pid, 0.2)
        time.sleep(1.5)
        first, second = (begin(exporter, gpus=["0"], pids=[process.pid])["run_id"] for process in (one, other))
        time.sleep(2.0)
        before = exporter.metrics()
        time.sleep(10.0)
        after = exporter.metrics()

    idle_w = exporter_idle(after)
    assert idle_w == pytest.approx(78.0, abs=1.0)
    apart, shared = (
        {run: parts(after, p, UUIDS[0])[run] - parts(before, p, UUIDS[0])[run] for run in (first, second, "")}
        for p in ("idle_apart", "idle_shared")
    )
    total_j = whole(after, UUIDS[0]) - whole(before, UUIDS[0])
    assert apart[first] / apart[second] == pytest.approx(3.0, rel=0.05)
    assert shared[first] - apart[first] == pytest.approx(shared[second] - apart[second], rel=0.05)
    assert apart[""] == pytest.approx(idle_w * 10.0, rel=0.1)
    assert shared[""] == pytest.approx(0.0, abs=0.01 * total_j)


def exporter_idle(found):
    return next(value for labels, value in found["wattline_idle_power_watts"] if labels["device"] == UUIDS[0])


def drive(simulation: Simulation, pid: int, share: float) -> None:
    simulation.drive(0, share, pid, 1 << 30)


def test_attribution_single_run_gets_its_gpus_energy_within_one_update(tmp_path):
    with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation, processes(1) as (one,):
        drive(simulation, one.pid, 0.8)
        time.sleep(2.0)
        run_id = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
        time.sleep(8.0)
        run = end(exporter, run_id)
        shown = parts(exporter.metrics(), "idle_shared", UUIDS[0])

    joules = run["energy_joules"]["gpu"][UUIDS[0]]
    assert shown[run_id] == pytest.approx(joules, rel=0.04)


@pytest.mark.parametrize("after_tick_s", [0.3, 0.8])
def test_attribution_single_run_stops_at_death_of_its_processes(tmp_path, after_tick_s):
    """Its end follows at once, as that of a job does: the look in which it is gone is the first since it was there."""
    with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation, processes(1) as (one,):
        drive(simulation, one.pid, 0.8)
        time.sleep(2.0)
        run_id = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
        time.sleep(4.0 + after_tick_s)
        simulation.release(0, one.pid)
        one.kill()
        one.wait()
        run = end(exporter, run_id)
        shown = parts(exporter.metrics(), "idle_shared", UUIDS[0])

    lost_j = run["energy_joules"]["gpu"][UUIDS[0]] - shown[run_id]
    power_w = run["energy_joules"]["gpu"][UUIDS[0]] / (4.0 + after_tick_s)
    assert abs(lost_j) < 0.2 * power_w


def test_attribution_dying_run_does_not_change_other_runs(tmp_path):
    """It is buried eight seconds after its death: meanwhile one run has ended beside it and another has begun."""
    with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation, processes(2) as (one, dying):
        drive(simulation, one.pid, 0.8)
        dead = begin(exporter, gpus=["1"], pids=[dying.pid])["run_id"]
        before = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
        dying.kill()
        dying.wait()
        time.sleep(5.5)
        end(exporter, before)
        ended_j = parts(exporter.metrics(), "idle_shared", UUIDS[0])[before]
        time.sleep(0.5)
        after = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
        eventually(lambda: exporter.get(f"/api/v1/runs/{dead}")[1]["state"] == "ended", "it is buried", exporter.log)
        time.sleep(2.0)
        run = end(exporter, after)
        shown = parts(exporter.metrics(), "idle_shared", UUIDS[0])

    joules = run["energy_joules"]["gpu"][UUIDS[0]]
    assert shown[before] == ended_j
    assert shown[after] == pytest.approx(joules, abs=0.2 * joules / run["duration_seconds"])


def test_attribution_processes_that_died_in_downtime_get_no_energy(tmp_path):
    with processes(1) as (one,):
        with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation:
            drive(simulation, one.pid, 0.8)
            run_id = begin(exporter, gpus=["0"], pids=[one.pid])["run_id"]
            time.sleep(2.5)
            before = parts(exporter.metrics(), "idle_shared", UUIDS[0])[run_id]
        one.kill()
        one.wait()
        time.sleep(3.0)
        with daemon(tmp_path, *OPTIONS) as exporter:
            exporter.wait_for_metric(bool, WHOLE, gpu="0")
            first = parts(exporter.metrics(), "idle_shared", UUIDS[0])[run_id]
            time.sleep(3.0)
            later = parts(exporter.metrics(), "idle_shared", UUIDS[0])[run_id]

    power_w = before / 2.5
    assert before <= first <= before + 1.0 * power_w
    assert later == first


@pytest.mark.skipif(POWER_PMU.exists(), reason="the machine's power PMU takes precedence over the estimate")
def test_attribution_of_cpu_energy_follows_cpu_time(tmp_path):
    burn = [sys.executable, "-c", "while True: pass"]
    with ExitStack() as stack:
        exporter = stack.enter_context(daemon(tmp_path, *OPTIONS, "--cpu.power-model", "idle=0,max=100"))
        mine, foreign = (stack.enter_context(subprocess.Popen(burn)) for _ in range(2))
        stack.callback(foreign.kill)
        stack.callback(mine.kill)
        time.sleep(2.0)
        run_id = begin(exporter, pids=[mine.pid])["run_id"]
        time.sleep(3.0)
        before, before_s = parts(exporter.metrics(), "idle_shared", "0"), cpu_s(mine.pid)
        time.sleep(10.0)
        after, after_s = parts(exporter.metrics(), "idle_shared", "0"), cpu_s(mine.pid)
        run = end(exporter, run_id)

    mine_j, rest_j = after[run_id] - before[run_id], after[""] - before[""]
    (mine_s, busy_s) = (b - a for a, b in zip(before_s, after_s, strict=True))
    assert mine_j / (mine_j + rest_j) == pytest.approx(mine_s / busy_s, rel=0.2)
    assert any("estimated from utilization" in note for note in run["notes"])


def cpu_s(pid):
    """CPU seconds of the process, and of all."""
    own, node = psutil.Process(pid).cpu_times(), psutil.cpu_times()
    return own.user + own.system, sum(node) - node.idle - node.iowait - node.guest - node.guest_nice - node.steal
