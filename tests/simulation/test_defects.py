"""Defects of the exporter, made on purpose: the simulation finds each of them."""

from dataclasses import replace

import pytest

from tests.simulation.episode import Plan, simulate


def lose_runs(life):
    """Acknowledge requests without saving the runs."""
    save = life.file.save
    life.file.save = lambda changes: save(replace(changes, runs=[]))


def lose_work(life):
    """Save each run without the work of one contributor."""
    save = life.file.save

    def without(run):
        return run._replace(
            body=run.body.replace('"rank-1"', '"rank-1-lost"').replace('"steps"', '"lost"')
        )

    life.file.save = lambda changes: save(
        replace(changes, runs=[without(run) for run in changes.runs])
    )


def save_totals_late(life):
    """Save the first totals again and again."""
    save, first = life.file.save, {}

    def late(changes):
        first.update(
            {device: totals for device, totals in changes.totals.items() if device not in first}
        )
        save(
            replace(
                changes, totals=dict(first), attributed=changes.attributed._replace(microjoules={})
            )
        )

    life.file.save = late


def lose_a_share(life):
    """Leave out the shares of one policy now and then."""
    add = life.energies._add_shares
    calls = []

    def some(device, energy_uj, *rest):
        calls.append(device)
        add(device, energy_uj - (len(calls) % 7 == 0), *rest)

    life.energies._add_shares = some


def lose_an_owner(life):
    """Leave out the energy of unattributed devices in the owners' counters now and then."""
    add = life.energies.owners.add_energy
    calls = []

    def some(component, policy, microjoules, at_s):
        calls.append(component)
        if len(calls) % 50:
            add(component, policy, microjoules, at_s)

    life.energies.owners.add_energy = some


def show_stale_series(life):
    """Never mark a GPU as silent."""
    life.live.age = lambda _now_s: None
    life.live._down = lambda _index, _reason: None
    life.live._driver_gone = lambda _gone: None


def halve_energies(life):
    """Report half of each run's energy, with its interval."""
    measured = life.ledger.measured

    def halved(run):
        shown = measured(run)
        devices = tuple(
            replace(each, energy_j=replace(each.energy_j, value=each.energy_j.number / 2))
            for each in shown.devices
        )
        phases = tuple(replace(phase, energies_j={}) for phase in shown.phases)
        return replace(shown, devices=devices, phases=phases)

    life.ledger.measured = halved


def lengthen_phases(life):
    """Count each phase twice."""
    measured = life.ledger.measured

    def longer(run):
        shown = measured(run)
        phases = tuple(replace(p, duration_s=2 * p.duration_s + 1) for p in shown.phases)
        return replace(shown, phases=phases)

    life.ledger.measured = longer


def crash(life):
    """Raise an error that is not handled, in the tick of each second."""
    life.ledger.tick = None


DEFECTS = [
    (lose_runs, ("kill",), "unknown"),
    (lose_work, ("kill",), "acknowledged {"),
    (save_totals_late, ("kill",), "fell from"),
    (lose_a_share, (), "add up to"),
    (lose_an_owner, (), "owners of"),
    (show_stale_series, ("kill worker",), "its series remain"),
    (halve_energies, (), "outside of the interval without a note"),
    (lengthen_phases, (), "exceed the run"),
    (crash, (), "the exporter ended"),
]


@pytest.mark.parametrize(
    ("defect", "faults", "text"), DEFECTS, ids=[defect.__name__ for defect, *_ in DEFECTS]
)
def test_simulation_with_a_defect_reports_the_violation(defect, faults, text):
    mean_s = (
        4.0 if defect is show_stale_series else 8.0
    )  # only the pauses after repeated kills are long enough
    plan = Plan(faults=faults, mean_s=mean_s, calm_s=20.0, defect=defect)
    violations = (simulate(seed, 0.03, plan).violation for seed in range(8))

    assert any(text in violation for violation in violations)
