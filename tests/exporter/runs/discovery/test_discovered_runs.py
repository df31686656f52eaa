"""Discovered runs of a real exporter: unmodified programs in real cgroups, on simulated GPUs with
known energy.
"""

import time

import pytest

from tests.daemon import begin, daemon, end, start, wait_until_it_serves
from tests.exporter.runs.discovery.real_cgroups import cgroup2_mount, cgroups
from tests.fakes.cgroup_tree import ID
from tests.polling import eventually
from wattline_exporter.sensors.processes.procfs import TICK_S
from wattline_exporter.sensors.readings import boottime

OPTIONS = ("--simulate", "5xH200", "--no-collector.host", "--no-collector.rapl")
JOB = "slurmstepd.scope/job_{}/step_0/user/task_0"
"""Cgroup of a job. Each test has its own numbers: those that run at the same time share the
machine's cgroups.
"""
SEEN_WITHIN_S = 2.0
"""Longest time for which a program runs before the test stops it; the exporter scans twice a
second.
"""

pytestmark = pytest.mark.skipif(
    cgroup2_mount() is None, reason="needs root and a writable cgroup v2"
)


@pytest.fixture
def groups():
    with cgroups(cgroup2_mount()) as made:
        yield made


def runs(exporter, **wanted):
    return [run for run in exporter.get("/api/v1/runs")[1] if wanted.items() <= run.items()]


def wait_for_run(exporter, **wanted):
    eventually(lambda: runs(exporter, **wanted), f"a run {wanted}", exporter.log)
    (run,) = runs(exporter, **wanted)
    return run


def assert_energies_are_true(exporter, run):
    """Compare the energy of each GPU with the simulation's in the run's time."""
    with exporter.simulation() as simulation:
        begin_s = run["started_at"] - (time.time() - simulation.now())
        assert run["energy_joules"]["gpu"], run
        for gpu in run["gpus"]:
            true_j = simulation.energy_j(
                int(gpu["gpu"]), begin_s, begin_s + run["duration_seconds"]
            )
            half_width_j = run["energy_uncertainty_joules"]["gpu"][gpu["uuid"]]
            # 1 of 20 errors may be larger than the half-width of a 95 % interval; all tests compare
            # some 20 energies
            assert abs(run["energy_joules"]["gpu"][gpu["uuid"]] - true_j) <= 2 * half_width_j, (
                run,
                true_j,
            )


def assert_times_are_true(run, program):
    """Compare the run's times with those of its program."""
    offset_s = time.time() - boottime()
    assert run["started_at"] - offset_s == pytest.approx(program.key.started_s, abs=2 * TICK_S)
    ended_s = run["ended_at"] - offset_s
    assert ended_s == pytest.approx(
        run["started_at"] - offset_s + run["duration_seconds"], abs=2 * TICK_S
    )
    assert ended_s <= program.ended_s + 2 * SEEN_WITHIN_S


def test_job_container_service_and_script_become_runs_with_true_energies(tmp_path, groups):
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "auto") as exporter,
        exporter.simulation() as simulation,
    ):
        job = groups.start(
            JOB.format(4711),
            SLURM_CLUSTER_NAME="lab",
            SLURM_JOB_USER="ada",
            SLURM_JOB_NAME="llm",
            SLURM_JOB_GPUS="0,4",
        )
        container = groups.start(f"docker-{ID}.scope")
        service = groups.start("ollama.service")
        script = groups.start()
        for gpu, program in enumerate((job, container, service, script)):
            # the job was assigned GPU 4 as well, which it does not use
            simulation.drive(gpu, 0.4 + 0.1 * gpu, program.key.pid)
        wait_for_run(exporter, workload="slurm", state="running")
        wait_for_run(exporter, workload="container", state="running")
        wait_for_run(exporter, workload="service", state="running")
        wait_for_run(exporter, workload="user", state="running")
        time.sleep(SEEN_WITHIN_S)
        for gpu, program in enumerate((job, container, service, script)):
            program.stop()
            simulation.release(gpu, program.key.pid)
        ended = {
            kind: wait_for_run(exporter, workload=kind, state="ended")
            for kind in ("slurm", "container", "service", "user")
        }
    for kind, program in zip(ended, (job, container, service, script), strict=True):
        assert ended[kind]["outcome"] == "unknown"
        assert_times_are_true(ended[kind], program)
        assert_energies_are_true(exporter, ended[kind])
        assert ended[kind]["attributed_energy_joules"] == {}  # no GPU was shared
    assert ended["slurm"]["run_id"] == "slurm-lab-4711"
    assert ended["slurm"]["labels"] == {"discovered": "slurm", "user": "ada", "job_name": "llm"}
    assert [gpu["gpu"] for gpu in ended["slurm"]["gpus"]] == ["0", "4"]
    assert ended["container"]["run_id"] == f"container-{ID[:12]}"
    assert ended["service"]["labels"] == {"discovered": "service", "unit": "ollama.service"}
    assert ended["user"]["labels"] == {"discovered": "user", "user": "root"}


def test_job_of_srun_has_gpus_of_its_step_from_start_and_others_later(tmp_path, groups):
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "slurm") as exporter,
        exporter.simulation() as simulation,
    ):
        job = groups.start(
            JOB.format(4712),
            SLURM_CLUSTER_NAME="lab",
            SLURM_RESTART_COUNT="1",
            SLURM_STEP_GPUS="0,4",
        )
        simulation.drive(0, 0.4, job.key.pid)
        running = wait_for_run(exporter, state="running")
        assert running["run_id"] == "slurm-lab-4712.2"  # on all nodes of the second attempt
        simulation.drive(2, 0.4, job.key.pid)
        eventually(lambda: len(runs(exporter)[0]["gpus"]) == 3, "the third GPU", exporter.log)
        job.stop()
        for gpu in (0, 2):
            simulation.release(gpu, job.key.pid)
        ended = wait_for_run(exporter, state="ended")
        assert_energies_are_true(exporter, ended)
    assert [gpu["gpu"] for gpu in ended["gpus"]] == ["0", "2", "4"]


def test_discovered_run_continues_after_a_killed_exporter(tmp_path, groups):
    first = start(tmp_path, *OPTIONS, "--runs.discover", "slurm")
    wait_until_it_serves(first)
    job = groups.start(JOB.format(12))
    with first.simulation() as simulation:
        simulation.drive(0, 0.5, job.key.pid)
        before = wait_for_run(first, workload="slurm", state="running")
        first.process.kill()
        first.process.wait(30)
        with daemon(tmp_path, *OPTIONS, "--runs.discover", "slurm") as second:
            time.sleep(SEEN_WITHIN_S)
            assert [run["run_id"] for run in runs(second)] == [before["run_id"]]
            job.stop()
            simulation.release(0, job.key.pid)
            ended = wait_for_run(second, state="ended")
            assert_energies_are_true(second, ended)
    assert ended["run_id"] == before["run_id"]
    assert ended["started_at"] == pytest.approx(before["started_at"], abs=TICK_S)


@pytest.mark.parametrize(
    ("cgroup", "down_s"), [(JOB.format(13), 3.0), (None, 3.0), (JOB.format(18), 12.0)]
)
def test_program_ended_during_downtime_has_its_energy_in_the_interval(
    tmp_path, groups, cgroup, down_s
):
    first = start(tmp_path, *OPTIONS, "--runs.discover", "auto")
    wait_until_it_serves(first)
    program = groups.start(cgroup)
    with first.simulation() as simulation:
        simulation.drive(0, 0.9, program.key.pid)
        begun = wait_for_run(first, state="running")
        begin_s = begun["started_at"] - (time.time() - simulation.now())
        first.wait_for_metric(bool, "wattline_gpu_power_limit_watts", gpu="0", kind="enforced")
        time.sleep(SEEN_WITHIN_S)
        first.process.kill()
        first.process.wait(30)
        killed_at = time.time()
        time.sleep(1.0)
        program.stop()
        end_s = simulation.now()
        time.sleep(down_s)  # at the power of the program, as of another one after it
        true_j = simulation.energy_j(0, begin_s, end_s)
        with daemon(tmp_path, *OPTIONS, "--runs.discover", "auto") as second:
            served_at = time.time()
            ended = wait_for_run(second, state="ended")
        simulation.release(0, program.key.pid)
    assert killed_at - 2 * SEEN_WITHIN_S < ended["ended_at"] < served_at - down_s
    assert "while the exporter was not running" in " ".join(ended["notes"])
    (energy_j,), (half_width_j,) = (
        ended[f"energy_{kind}joules"]["gpu"].values() for kind in ("", "uncertainty_")
    )
    assert abs(energy_j - true_j) < half_width_j
    assert energy_j < true_j  # it is that until the last scan
    assert half_width_j < 700.0 * (down_s + 8.0), ended
    assert (
        ended["attributed_energy_joules"].get("gpu", {}).get(ended["gpus"][0]["uuid"], 0.0) < true_j
    )


@pytest.mark.parametrize("cgroup", [None, f"docker-{ID}.scope"])
def test_killed_program_ends_its_run_while_the_driver_lists_it(tmp_path, groups, cgroup):
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "auto") as exporter,
        exporter.simulation() as simulation,
    ):
        program = groups.start(cgroup)
        simulation.drive(0, 1.0, program.key.pid)
        wait_for_run(exporter, state="running")
        time.sleep(SEEN_WITHIN_S)
        program.stop()
        ended = wait_for_run(exporter, state="ended")
        time.sleep(SEEN_WITHIN_S)
        assert [run["run_id"] for run in runs(exporter)] == [ended["run_id"]]
    assert_times_are_true(ended, program)
    assert (
        ended["started_at"] + ended["duration_seconds"] - (time.time() - boottime())
        <= program.ended_s + 0.1
    )
    assert_energies_are_true(exporter, ended)
    (energy_j,), (half_width_j,) = (
        ended[name]["gpu"].values() for name in ("energy_joules", "energy_uncertainty_joules")
    )
    assert energy_j - half_width_j <= 700.0 * ended["duration_seconds"]


def test_requeued_job_is_a_second_run(tmp_path, groups):
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "slurm") as exporter,
        exporter.simulation() as simulation,
    ):
        for number in (1, 2):
            job = groups.start(JOB.format(14))
            simulation.drive(0, 0.5, job.key.pid)
            wait_for_run(exporter, state="running")
            job.stop()
            simulation.release(0, job.key.pid)
            eventually(
                lambda: not runs(exporter, state="running"), "the end of the run", exporter.log
            )
            assert len(runs(exporter, state="ended")) == number
        assert {run["run_id"] for run in runs(exporter)} == {
            "slurm-cluster-14",
            "slurm-cluster-14.2",
        }


def test_tagged_run_in_a_discovered_one_has_the_energy_of_its_processes(tmp_path, groups):
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "slurm") as exporter,
        exporter.simulation() as simulation,
    ):
        outer, inner = groups.start(JOB.format(15)), groups.start(JOB.format(15))
        simulation.drive(0, 0.5, inner.key.pid)
        simulation.drive(1, 0.5, outer.key.pid)
        wait_for_run(exporter, workload="slurm")
        tagged = begin(exporter, run_id="tagged", gpus=["0"], pids=[inner.key.pid])
        time.sleep(SEEN_WITHIN_S)
        tagged = end(exporter, "tagged")
        inner.stop()
        outer.stop()
        simulation.release(0, inner.key.pid)
        simulation.release(1, outer.key.pid)
        job = wait_for_run(exporter, workload="slurm", state="ended")
        uuid = tagged["gpus"][0]["uuid"]
        metrics = exporter.metrics()
        (device_j,) = (
            v for labels, v in metrics["wattline_gpu_energy_joules_total"] if labels["uuid"] == uuid
        )
        shares = metrics["wattline_run_attributed_energy_joules_total"]
        shares_j = sum(
            v
            for labels, v in shares
            if labels["device"] == uuid and labels["policy"] == "idle_shared"
        )
    assert {gpu["gpu"] for gpu in job["gpus"]} == {"0", "1"}
    share_j = job["attributed_energy_joules"]["gpu"][uuid]
    assert (
        job["energy_joules"]["gpu"][uuid] - tagged["energy_joules"]["gpu"][uuid] >= share_j - 50.0
    )
    assert shares_j == pytest.approx(device_j, rel=1e-6)


def test_run_that_uses_its_gpu_late_does_not_share_it(tmp_path, groups):
    with daemon(tmp_path, *OPTIONS) as exporter, exporter.simulation() as simulation:
        script = groups.start()
        begin(exporter, run_id="late", gpus=[], pids=[script.key.pid])
        time.sleep(2 * SEEN_WITHIN_S)
        simulation.drive(2, 0.5, script.key.pid)
        time.sleep(2 * SEEN_WITHIN_S)
        run = end(exporter, "late")
        simulation.release(2, script.key.pid)
        assert_energies_are_true(exporter, run)
    (uuid,) = run["energy_joules"]["gpu"]
    assert run["attributed_energy_joules"] == {}
    idle_w, scan_s = 72.0, 1.0
    assert (
        run["energy_before_use_joules"]["gpu"][uuid] >= (2 * SEEN_WITHIN_S - scan_s) * idle_w - 10.0
    )


def test_job_with_assigned_gpus_is_a_run_before_it_uses_one(tmp_path, groups):
    mapping = tmp_path / "jobs"
    mapping.mkdir()
    options = (*OPTIONS, "--runs.discover", "slurm", "--hpc-job-mapping-dir", str(mapping))
    with daemon(tmp_path, *options) as exporter, exporter.simulation() as simulation:
        for gpu in ("1", "3"):
            (mapping / gpu).write_text("28\n")
        (mapping / "2").write_text("4713\n")  # a job of which no process has started
        job = groups.start(JOB.format(28), SLURM_CLUSTER_NAME="lab")
        wait_for_run(exporter, state="running")
        simulation.drive(3, 0.5, job.key.pid)
        time.sleep(SEEN_WITHIN_S)
        job.stop()
        simulation.release(3, job.key.pid)
        ended = wait_for_run(exporter, state="ended")
        assert_energies_are_true(exporter, ended)
        for gpu in ("1", "3"):
            (mapping / gpu).unlink()
        time.sleep(SEEN_WITHIN_S)
        assert [run["run_id"] for run in runs(exporter)] == ["slurm-lab-28"]
    assert [gpu["gpu"] for gpu in ended["gpus"]] == ["1", "3"]


def test_owners_beyond_the_limit_of_runs_are_counted_once(tmp_path, groups):
    options = (*OPTIONS, "--runs.discover", "slurm", "--runs.max", "1")
    with daemon(tmp_path, *options) as exporter, exporter.simulation() as simulation:
        for number in (16, 17):
            job = groups.start(JOB.format(number))
            simulation.drive(number - 16, 0.5, job.key.pid)
            wait_for_run(exporter, workload="slurm")
        exporter.wait_for_metric(lambda value: value == 1.0, "wattline_runs_folded_total")
        time.sleep(SEEN_WITHIN_S)
        assert exporter.value("wattline_runs_folded_total") == 1.0
        assert (
            exporter.log().count("slurm 17: too many runs are open; only its owner has its energy")
            == 1
        )


def test_process_of_another_pid_namespace_is_logged_with_the_remedy(tmp_path):
    pid = 4_194_305  # above the kernel's limit, so no process here has it
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "slurm") as exporter,
        exporter.simulation() as simulation,
    ):
        simulation.drive(0, 0.5, pid)
        exporter.wait_for_metric(
            lambda value: value == 1.0,
            "wattline_discovery_unresolved_processes",
            reason="not_visible",
        )
        text = (
            f"process {pid} uses a GPU but belongs to no run: the exporter sees no such "
            "process; the container of the "
        )
        assert text + "exporter or of the process needs the host's PID namespace" in exporter.log()
        simulation.release(0, pid)


def test_process_without_owner_is_a_metric_and_one_line_in_the_log(tmp_path, groups):
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "slurm") as exporter,
        exporter.simulation() as simulation,
    ):
        script = groups.start()
        simulation.drive(0, 0.5, script.key.pid)
        name = "wattline_discovery_unresolved_processes"
        exporter.wait_for_metric(lambda value: value == 1.0, name, reason="no_owner")
        time.sleep(SEEN_WITHIN_S)
        assert exporter.value(name, reason="not_visible") == 0.0
        assert (
            exporter.log().count(f"process {script.key.pid} uses a GPU but belongs to no run") == 1
        )
        assert runs(exporter) == []
        simulation.release(0, script.key.pid)
        exporter.wait_for_metric(lambda value: value == 0.0, name, reason="no_owner")
