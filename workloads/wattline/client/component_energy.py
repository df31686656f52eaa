"""Energies of a run by component, from the JSON of the run API.

Only the standard library is imported, since it also runs inside users' training processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattline.figures import Figure, joules_text, proportional_text, sum_of_one_job

DEVICES = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}
"""Words for the devices of each component."""


@dataclass(frozen=True, slots=True)
class ComponentEnergy:
    """Energy of all devices of a component, in joules."""

    energy_j: Figure
    """Sum of the whole devices."""
    attributed_j: float | None
    """The run's part, None on devices that nothing else used."""

    @property
    def share_text(self) -> str:
        """The run's part in joules, empty if it is unknown."""
        if self.attributed_j is None:
            return ""
        if self.energy_j.relative_half_width:
            return f"{proportional_text(self.attributed_j, self.energy_j)} J"
        return joules_text(Figure(self.attributed_j))


def energies_by_component(run: Mapping[str, Any]) -> dict[str, ComponentEnergy]:
    """Return the energies of a run of the run API."""
    return {name: _component(run, name) for name in DEVICES if run["energy_joules"].get(name)}


def _component(run: Mapping[str, Any], name: str) -> ComponentEnergy:
    energies_j = run["energy_joules"][name]
    half_widths_j = run.get("energy_uncertainty_joules", {}).get(name, {})
    biases_j = run.get("energy_sensor_limits_joules", {}).get(name, {})
    shares_j = run.get("attributed_energy_joules", {}).get(name, {})
    energy_j = sum_of_one_job(
        Figure(joules, half_widths_j.get(device), biases_j.get(device))
        for device, joules in energies_j.items()
    )
    if not shares_j:
        return ComponentEnergy(energy_j, None)
    attributed_j = math.fsum(shares_j.get(device, joules) for device, joules in energies_j.items())
    return ComponentEnergy(energy_j, attributed_j)
