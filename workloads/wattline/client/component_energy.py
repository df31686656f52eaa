"""Energies of a run by component, with their errors, from the JSON of the run API.

Only the standard library is imported, since it also runs inside users' training processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattline.client import figures

DEVICES = {"gpu": "GPUs", "cpu": "CPUs", "dram": "memory"}
"""Words for the devices of each component."""


@dataclass(frozen=True, slots=True)
class ComponentEnergy:
    """Energy of all devices of a component: their sum in joules, with the 95 % half-width, None if
    unknown.
    """

    joules: float
    half_j: float | None
    attributed_j: float | None
    """The run's part, None on devices that nothing else used."""
    limits_j: tuple[float, float] | None = None
    """Limits of the true energy minus this one by the accuracy of the sensors; None without such an
    error.
    """

    @property
    def total_half_j(self) -> float | None:
        """Half-width of random error and sensor accuracy together, which decides the digits."""
        if self.limits_j is None:
            return self.half_j
        return math.hypot(self.half_j or 0.0, max(map(abs, self.limits_j)))

    @property
    def rounding_ratio(self) -> float | None:
        """Relative half-width of figures derived from this energy; None if it is unknown."""
        half_j = self.total_half_j
        return half_j / self.joules if half_j and self.joules > 0 else None

    @property
    def error_text(self) -> str:
        """Random error and sensor accuracy, if the energy is rounded to both together, else
        empty.
        """
        if self.limits_j is None:
            return ""
        random = f"± {figures.two_digits(self.half_j)} J random, " if self.half_j else ""
        low, high = (
            f"{'-' if limit < 0 else '+'}{figures.two_digits(abs(limit))}"
            for limit in self.limits_j
        )
        return f"{random}{low} to {high} J sensor accuracy"

    @property
    def share_text(self) -> str:
        """The run's part in joules, empty if it is unknown."""
        if self.attributed_j is None:
            return ""
        return (
            self.derived(self.attributed_j)
            if self.rounding_ratio
            else figures.with_half(self.attributed_j, None)
        )

    def derived(self, value: float) -> str:
        """Return a figure that is proportional to the energy, with as many digits as the energy
        has.
        """
        ratio = self.rounding_ratio
        return figures.rounded(value, value * ratio) if ratio and value else figures.plain(value)


def energies_by_component(run: Mapping[str, Any]) -> dict[str, ComponentEnergy]:
    """Return the energies of a run of the run API."""
    halves, shares = (
        run.get("energy_uncertainty_joules", {}),
        run.get("attributed_energy_joules", {}),
    )
    limits = run.get("energy_sensor_limits_joules", {})
    return {
        name: replace(
            _component(run["energy_joules"][name], halves.get(name, {}), shares.get(name, {})),
            limits_j=_sum_limits_j(limits.get(name, {})),
        )
        for name in DEVICES
        if run["energy_joules"].get(name)
    }


def _sum_limits_j(limits_j: Mapping[str, Sequence[float]]) -> tuple[float, float] | None:
    if not limits_j:
        return None
    return math.fsum(low for low, _ in limits_j.values()), math.fsum(
        high for _, high in limits_j.values()
    )


def sum_total_half_j(energies: Mapping[str, ComponentEnergy]) -> float | None:
    halves = [one.total_half_j for one in energies.values() if one.total_half_j is not None]
    return math.fsum(halves) if energies and len(halves) == len(energies) else None


def sum_j(energies: Mapping[str, ComponentEnergy]) -> float:
    return math.fsum(one.joules for one in energies.values())


def sum_half_j(energies: Mapping[str, ComponentEnergy]) -> float | None:
    halves = [one.half_j for one in energies.values() if one.half_j is not None]
    return math.fsum(halves) if energies and len(halves) == len(energies) else None


def _component(
    joules: Mapping[str, float], halves_j: Mapping[str, float], shares_j: Mapping[str, float]
) -> ComponentEnergy:
    half_j = (
        math.fsum(halves_j[device] for device in joules)
        if joules.keys() <= halves_j.keys()
        else None
    )
    share_j = (
        math.fsum(shares_j.get(device, energy_j) for device, energy_j in joules.items())
        if shares_j
        else None
    )
    return ComponentEnergy(math.fsum(joules.values()), half_j, share_j)
