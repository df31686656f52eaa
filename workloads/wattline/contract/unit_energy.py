"""Energy per unit of work of an ended run, as `wattline.contract.work` defines it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wattline.contract.run import EnergyPerUnit, RunView
from wattline.contract.work import (
    SHORTEST_PHASE_S,
    is_useful,
    phases_of_work,
    primary_first,
    unit_of_one,
)

_COMPONENTS = ("gpu", "cpu", "dram")


def energies_per_unit(run: RunView) -> Iterator[EnergyPerUnit]:
    """Yield the energy per unit of each useful unit, the primary one first; none without energy."""
    component = next((name for name in _COMPONENTS if run.energy_joules.get(name)), None)
    if component is None:
        return
    energies_j, shares_j = (
        run.energy_joules[component],
        run.attributed_energy_joules.get(component, {}),
    )
    whole_j = math.fsum(energies_j.values())
    share_j = math.fsum(shares_j.get(device, joules) for device, joules in energies_j.items())
    least_s = SHORTEST_PHASE_S if component == "gpu" else 0.0
    measured_s = {
        phase.name: phase.duration_seconds
        for phase in run.phases
        if component in phase.energy_joules and phase.duration_seconds >= least_s
    }
    units = (unit for unit, amount in run.work.items() if amount > 0 and is_useful(unit))
    for unit in primary_first(units, run.work_unit):
        amount, name = run.work[unit], unit_of_one(unit)
        if shares_j:
            whole_device_j = whole_j / amount
            yield EnergyPerUnit(
                unit=unit,
                name=name,
                component=component,
                joules=share_j / amount,
                whole_device_joules=whole_device_j,
            )
            continue
        done_in = {phase.name: phase.work[unit] for phase in run.phases if unit in phase.work}
        names = phases_of_work(amount, done_in, measured_s, run.duration_seconds)
        joules = math.fsum(
            phase.energy_joules[component] for phase in run.phases if phase.name in names
        )
        used_j = joules if names else whole_j
        yield EnergyPerUnit(
            unit=unit, name=name, component=component, joules=used_j / amount, phases=list(names)
        )
