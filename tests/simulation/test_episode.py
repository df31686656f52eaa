"""Simulated nodes with faults: new seeds hold all invariants, and a seed replays exactly."""

import secrets
import time

from tests.simulation.__main__ import report, simulate_short
from tests.simulation.episode import Plan, simulate

CPU_S = 2.0


def test_simulation_new_seeds_hold_all_invariants():
    begin_s = time.process_time()
    seed = secrets.randbelow(1 << 40)
    while time.process_time() - begin_s < CPU_S:
        result = simulate_short(seed)
        assert not result.violation, report(result, " SHORT=1")
        seed += 1


def test_simulation_same_seed_has_the_same_trace():
    plan = Plan(faults=("driver", "kill", "disk"), mean_s=8.0, calm_s=10.0)
    first, second, other = (simulate(seed, 0.02, plan) for seed in (7, 7, 8))

    assert first.trace_hash == second.trace_hash
    assert first.trace_hash != other.trace_hash
    assert first.kills > 0
    assert first.tally.pages > 5


def test_simulation_power_cut_that_loses_the_whole_journal_starts_afresh():
    def lose_the_journal(life):
        kill = life.kill
        life.kill = lambda torn=None: kill(torn=None if torn is None else 0.0)

    plan = Plan(faults=("power cut",), mean_s=2.0, calm_s=45.0, defect=lose_the_journal)
    result = simulate(3, 0.03, plan)

    assert result.kills > 0
    assert not result.violation
