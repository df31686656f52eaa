"""Quantities as entries of a document: stable keys that carry their unit, and null for what is not known. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.model.interval import Interval


def quantity(found: Interval | None, name: str, unit: str) -> dict[str, float | None]:
    return {
        f"{name}_{unit}": found.value if found else None,
        f"{name}_uncertainty_{unit}": found.half if found else None,
    }


def by_component(energies: Mapping[str, Interval]) -> dict[str, dict[str, float | None]]:
    return {
        "energy_joules": {component: energy.value for component, energy in energies.items()},
        "energy_uncertainty_joules": {component: energy.half for component, energy in energies.items()},
    }
