"""Discovered jobs of simulated nodes with kills and faults: each becomes one run with its
energy.
"""

import secrets
from dataclasses import replace

import pytest

from tests.simulation.discovery.node import JobPlan, simulate_jobs
from tests.simulation.virtual_time import ProcessEndError

JOBS = 25
CALM_S = 20.0


def test_discovery_new_seed_finds_each_job_once():
    seed = secrets.randbelow(1 << 40)
    outcome = simulate_jobs(seed, JobPlan(JOBS, fault_s=8.0))
    assert not outcome.violations, (seed, outcome.violations, outcome.result.events)
    assert outcome.verdict.attempts == JOBS
    assert outcome.result.kills > 0 or outcome.result.faults > 0


def test_discovery_without_downtime_finds_most_jobs():
    """A downtime of 30 s would hide most of them, which all start within 30 s."""
    plan = JobPlan(JOBS, fault_s=4.0, faults=("clock", "cpu"), calm_s=CALM_S)
    outcomes = [simulate_jobs(seed, plan) for seed in (4, 5, 6)]
    assert not any(each.violations for each in outcomes), [each.violations for each in outcomes]
    assert all(each.result.faults > 0 for each in outcomes)
    assert all(each.verdict.runs >= each.verdict.visible > JOBS / 2 for each in outcomes)
    assert sum(each.verdict.runs for each in outcomes) > 0.8 * 3 * JOBS


def test_discovery_more_jobs_than_runs_max_counts_them_within_the_limit():
    outcome = simulate_jobs(2, JobPlan(60, mean_s=0.5, max_open=5, faults=("kill",)))
    assert not outcome.violations, outcome.violations
    assert outcome.folded > 0
    assert outcome.verdict.runs < 60


def kill_after_begin(life):
    """Kill the exporter at some begins, before the run is saved."""
    begin, virtual = life.runs.begin_discovered, life.world.virtual

    def kill():
        raise ProcessEndError

    def begin_and_kill(found):
        if virtual.rng.random() < 0.3:
            virtual.after(0.001, kill)
        return begin(found)

    life.runs.begin_discovered = begin_and_kill


def test_discovery_killed_between_begin_and_first_save_finds_each_job_once():
    outcome = simulate_jobs(
        3, JobPlan(JOBS, mean_s=3.0, faults=(), calm_s=CALM_S, defect=kill_after_begin)
    )
    assert not outcome.violations, outcome.violations
    assert outcome.lives > 3


def test_discovery_run_of_a_user_continues_over_stops_of_the_exporter():
    """The first scan after a restart may come before the first read of the GPUs."""
    plan = JobPlan(
        15, mean_s=2.0, kinds=("user",), gpus=1, faults=("kill",), fault_s=25.0, calm_s=CALM_S
    )
    outcome = simulate_jobs(5, plan)
    assert not outcome.violations, outcome.violations
    assert outcome.lives > 2


def slow_threads(life):
    """Let each call in a thread wait, as on a machine with many more threads than CPUs."""
    delay_s, rng = life.loop.executor_delay_s, life.world.rng
    life.loop.executor_delay_s = lambda executor: delay_s(executor) + rng.uniform(0.0, 4.0)


def test_discovery_late_scans_end_runs_at_the_exit_of_their_process():
    """Scans and ticks are up to 9 s apart, so that the ledger ends some runs before the discovery
    does.
    """
    plan = JobPlan(
        20,
        kinds=("user", "slurm"),
        faults=(),
        calm_s=40.0,
        seen_s=14.0,
        late_s=14.0,
        defect=slow_threads,
    )
    for seed in (2, 5):
        outcome = simulate_jobs(seed, plan)
        assert not outcome.violations, outcome.violations
        assert outcome.verdict.runs > 10


def lose_runs(life):
    """Skip the save of ended runs, which has many consequences."""
    save = life.file.save
    life.file.save = lambda changes: save(
        replace(changes, runs=[run for run in changes.runs if run.is_open])
    )


def begin_twice(life):
    """Take running runs for missing ones now and then."""
    running = life.discovery._running
    life.discovery._running = lambda seen: (
        running(seen) if life.world.virtual.rng.random() < 0.9 else {}
    )


def end_late(life):
    """Take empty groups for populated ones for some seconds."""
    is_populated, rng = life.discovery._is_populated, life.world.virtual.rng
    life.discovery._is_populated = lambda path: is_populated(path) or rng.random() < 0.9


def keep_processes(life):
    """Never forget the processes of an ended run."""
    life.discovery._forget = lambda owner: None


def double_energies(life):
    """Report twice the energy of each run."""
    measured = life.ledger.measured

    def doubled(run):
        shown = measured(run)
        devices = tuple(
            replace(each, energy_j=replace(each.energy_j, value=2 * each.energy_j.number))
            for each in shown.devices
        )
        return replace(shown, devices=devices, notes=())

    life.ledger.measured = doubled


DEFECTS = [
    (lose_runs, ""),
    (begin_twice, "two runs at the same time"),
    (end_late, "s after Attempt"),
    (keep_processes, "processes holds"),
    (double_energies, "true"),
]


@pytest.mark.parametrize(
    ("defect", "text"), DEFECTS, ids=[defect.__name__ for defect, _ in DEFECTS]
)
def test_discovery_simulation_with_a_defect_reports_the_violation(defect, text):
    plan = JobPlan(
        8, gpus=1, faults=("kill",) if defect is lose_runs else (), calm_s=CALM_S, defect=defect
    )
    found = (violation for seed in range(5) for violation in simulate_jobs(seed, plan).violations)
    assert any(text in violation for violation in found)
