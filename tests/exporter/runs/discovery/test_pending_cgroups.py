"""Runs of Slurm jobs that begin in the prolog, before the cgroup of the job exists."""

import asyncio
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tests.daemon import Daemon, begin, daemon, end
from tests.exporter.runs.discovery.real_cgroups import cgroup2_mount, cgroups
from tests.exporter.runs.discovery.test_discovered_runs import (
    JOB,
    OPTIONS,
    SEEN_WITHIN_S,
    assert_energies_are_true,
    runs,
    wait_for_run,
)
from tests.polling import eventually
from wattline_exporter.runs.discovery.pending_cgroups import GIVE_UP_S, SLOW_AFTER_S, PendingCgroups
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner

needs_cgroups = pytest.mark.skipif(
    cgroup2_mount() is None, reason="needs root and a writable cgroup v2"
)
LABELS = {"discovered": "slurm", "user": "ada"}


@pytest.fixture
def groups():
    with cgroups(cgroup2_mount()) as made:
        yield made


def begin_job(exporter: Daemon, job: int, **body):
    fields = {
        "run_id": f"slurm-lab-{job}",
        "labels": LABELS,
        "gpus": ["0"],
        "cgroup": f"slurm:{job}",
    }
    return begin(exporter, "slurm", **{**fields, **body})


@needs_cgroups
@pytest.mark.parametrize(
    ("number", "options"),
    [(20, ()), (21, ("--runs.discover", "slurm"))],
    ids=["alone", "with discovery"],
)
def test_job_begun_in_its_prolog_is_one_run_with_its_outcome(tmp_path, groups, number, options):
    run_id = f"slurm-lab-{number}"
    with (
        daemon(tmp_path, *OPTIONS, *options) as exporter,
        exporter.simulation() as simulation,
    ):
        assert begin_job(exporter, number)["run_id"] == run_id
        job = groups.start(JOB.format(number), SLURM_CLUSTER_NAME="lab")
        simulation.drive(0, 0.5, job.key.pid)
        time.sleep(SEEN_WITHIN_S)
        assert [run["run_id"] for run in runs(exporter)] == [run_id]
        assert "has cgroup" in exporter.log() or options
        job.stop()
        simulation.release(0, job.key.pid)
        stopped_at = time.time()
        if options:  # the discovery ends it before the epilog
            wait_for_run(exporter, state="ended", outcome="unknown")
        ended = end(exporter, run_id, outcome="failed")
        assert ended["outcome"] == "failed"
        assert ended["ended_at"] == pytest.approx(stopped_at, abs=1.5)
        assert_energies_are_true(exporter, ended)
        exporter.wait_for_metric(
            lambda value: value == 1.0, "wattline_run_outcome_info", outcome="failed"
        )
        assert end(exporter, run_id, outcome="ok")["outcome"] == "failed"
        assert [run["outcome"] for run in runs(exporter)] == ["failed"]


@needs_cgroups
@pytest.mark.parametrize(
    ("number", "begins_first"), [(26, True), (27, False)], ids=["begun before it", "begun after it"]
)
def test_job_whose_cgroup_is_empty_at_first_is_one_run(tmp_path, groups, number, begins_first):
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "slurm") as exporter,
        exporter.simulation() as simulation,
    ):
        if begins_first:
            begin_job(exporter, number)
            groups.make(JOB.format(number))
        else:
            groups.make(JOB.format(number))
            begin_job(exporter, number)
        time.sleep(
            SEEN_WITHIN_S
        )  # slurmd makes the cgroup before it starts the first process in it
        job = groups.start(JOB.format(number), SLURM_CLUSTER_NAME="lab")
        simulation.drive(0, 0.5, job.key.pid)
        time.sleep(SEEN_WITHIN_S)
        assert [(run["run_id"], run["state"]) for run in runs(exporter)] == [
            (f"slurm-lab-{number}", "running")
        ]
        simulation.release(0, job.key.pid)


@needs_cgroups
def test_epilog_long_after_the_last_process_ends_the_run_at_it(tmp_path, groups):
    with daemon(tmp_path, *OPTIONS) as exporter:
        begin_job(exporter, 22)
        job = groups.start(JOB.format(22))
        eventually(lambda: "has cgroup" in exporter.log(), "the cgroup is found", exporter.log)
        time.sleep(SEEN_WITHIN_S)
        job.stop()
        stopped_at = time.time()
        time.sleep(3.0)
        ended = end(exporter, "slurm-lab-22", outcome="ok")
        assert -1.5 <= ended["ended_at"] - stopped_at <= 1.5


def test_second_attempt_of_a_job_is_a_second_run(tmp_path):
    with daemon(tmp_path, *OPTIONS) as exporter:
        begin_job(exporter, 23)
        status, again = exporter.post(
            "/api/v1/runs",
            {"workload": "slurm", "run_id": "slurm-lab-23", "labels": LABELS, "cgroup": "slurm:23"},
        )
        assert (status, again["run_id"]) == (200, "slurm-lab-23")  # a repeated request
        end(exporter, "slurm-lab-23", outcome="interrupted")
        assert begin_job(exporter, 23)["run_id"] == "slurm-lab-23.2"


def test_gpus_that_the_node_lacks_are_those_of_the_processes(tmp_path):
    with daemon(tmp_path, *OPTIONS) as exporter:
        assert begin_job(exporter, 24, gpus=["0", "17"])["gpus"] == []


@needs_cgroups
def test_tagged_run_of_a_step_takes_its_cgroup_when_it_appears(tmp_path, groups):
    with daemon(tmp_path, *OPTIONS) as exporter:
        begin(exporter, run_id="tagged", gpus=["0"], cgroup="slurm:25.0")
        step = groups.start(JOB.format(25))
        eventually(
            lambda: "tagged has cgroup" in exporter.log(), "the cgroup is found", exporter.log
        )
        step.stop()
        wait_for_run(exporter, run_id="tagged", outcome="interrupted")  # it is no discovered run


@dataclass
class FakeRun:
    pending_cgroup: str | None = "slurm:5"
    begin_s: float = 1000.0
    run_id: str = "slurm-lab-5"
    running: bool = True
    cgroup: str | None = None
    discovered: CgroupOwner | None = field(default_factory=lambda: CgroupOwner("slurm", "5", ""))
    notes: list[str] = field(default_factory=list)

    def note(self, text):
        self.notes.append(text)


def search_at(search, clock, *times_s):
    async def searches():
        for s in times_s:
            clock[0] = s
            await search.search()

    asyncio.run(searches())


def test_cgroup_that_never_appears_is_noted_after_ten_minutes():
    searched = []

    def resolve(name):
        searched.append(name)
        raise ValueError("no such job")

    run, clock = FakeRun(), [1000.0]
    search = PendingCgroups(SimpleNamespace(running=lambda: [run]), resolve, lambda: clock[0])
    search_at(search, clock, 1000.0, 1000.1, 1000.5)
    assert len(searched) == 2  # every 0.5 s
    slow_s = 1000.5 + SLOW_AFTER_S
    search_at(search, clock, slow_s, slow_s + 1.0, slow_s + 4.9)
    assert len(searched) == 3  # every 5 s
    assert run.notes == []
    search_at(search, clock, 1000.0 + GIVE_UP_S + 1.0)
    assert run.pending_cgroup is None
    (note,) = run.notes
    assert note.startswith(
        "cgroup slurm:5 did not appear within 600 s: no such job; all energy of the run's devices"
    )
    search_at(search, clock, 1000.0 + GIVE_UP_S + 10.0)
    assert len(searched) == 4


def test_cgroup_that_appears_becomes_that_of_the_job():
    run, clock, renewed = FakeRun(), [1000.0], []
    service = SimpleNamespace(running=lambda: [run], renew=renewed.append)
    populated = set()
    search = PendingCgroups(
        service, lambda _: "/slurm/job_5", lambda: clock[0], populated.__contains__
    )
    search_at(search, clock, 1000.0)
    assert (run.cgroup, run.pending_cgroup) == (None, "slurm:5")  # it has no process yet
    populated.add("/slurm/job_5")
    search_at(search, clock, 1000.5)
    assert (run.cgroup, run.pending_cgroup, renewed) == ("/slurm/job_5", None, [run])
    assert run.discovered == CgroupOwner("slurm", "5", "/slurm/job_5")
