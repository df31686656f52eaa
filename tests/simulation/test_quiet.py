"""Simulation of a node with rare faults: a skipped stretch equals its polls, and new seeds hold all
invariants.
"""

import random
import secrets
from collections.abc import Sequence

import pytest

from tests.simulation.episode import Plan
from tests.simulation.quiet import QuietClient, QuietEpisode, simulate_quiet
from wattline_exporter.simulation import Constant

HOURS = 0.25
SEED_HOURS = 240.0


class FixedRandom(random.Random):
    """Choices that do not depend on their number: the same events happen at the same times, polled
    or skipped.
    """

    def random(self) -> float:
        return 0.5

    def uniform(self, a: float, _b: float) -> float:
        return a

    def choice(self, seq):
        return seq[0]

    def expovariate(self, lambd: float = 1.0) -> float:
        return 1.0 / lambd


class ShortClient(QuietClient):
    phase_means_s: Sequence[float] = (180.0,)
    pause_means_s: Sequence[float] = (90.0,)

    def _load(self):
        return Constant(640.0)


class FixedEpisode(QuietEpisode):
    client_type = ShortClient

    def __init__(self, folder, *, skips):
        folder.mkdir()
        super().__init__(1, HOURS, folder, Plan(faults=(), calm_s=60.0))
        self._rng = self._virtual.rng = FixedRandom(1)
        self.skips = skips

    def _finish(self):
        ledger, live = self.life.ledger, self.life.live
        views = [ledger.measured(ledger.find(run_id)) for run_id in self._runs]
        self.runs = [(run.state, run.started_at, run.duration_s) for run in views]
        energies = [device.energy_j for run in views for device in run.devices]
        self.energies_j = [energy.number for energy in energies]
        self.halves_j = [energy.half_width for energy in energies if energy.half_width is not None]
        self.totals_j = {
            device: meter.totals.energy_j for device, meter in live.energy.meters.items()
        }
        shares_uj = self.life.energies.microjoules
        self.gpu_shares_uj = {
            key: amount for key, amount in shares_uj.items() if key.device.kind == "gpu"
        }
        super()._finish()


def test_quiet_skipped_stretch_has_the_energies_of_the_polled_one(tmp_path):
    """Totals and shares agree to the last bit, the runs' energies but for the rounding of a
    counter's many steps.

    The shares of the CPU's energy follow CPU times, which a skip reads at other times.
    """
    polled, skipped = (FixedEpisode(tmp_path / str(skips), skips=skips) for skips in (False, True))
    results = [polled.run(), skipped.run()]

    assert [result.violation for result in results] == ["", ""]
    assert results[0].skipped_hours == 0.0
    assert results[1].skipped_hours > 0.5 * HOURS
    assert results[1].polls < 0.5 * results[0].polls
    assert len(polled.runs) > 2
    assert skipped.runs == polled.runs
    assert {state for state, *_ in polled.runs} == {"ended"}
    assert skipped.totals_j == polled.totals_j
    assert skipped.gpu_shares_uj == polled.gpu_shares_uj
    assert skipped.energies_j == pytest.approx(polled.energies_j, rel=1e-12)
    assert skipped.halves_j == pytest.approx(polled.halves_j, rel=1e-9)


def test_quiet_simulation_new_seed_holds_all_invariants():
    result = simulate_quiet(secrets.randbelow(1 << 40), SEED_HOURS)

    assert not result.violation, (result.seed, result.violation, result.events)
    assert result.skipped_hours > 0.9 * SEED_HOURS
