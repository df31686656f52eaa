"""Requests of one client among all requests of a server."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from exporter.request_energy.divide import EnergyPart, RequestEnergies
from exporter.request_energy.load import DividedEnergy


def with_others(numbers: npt.NDArray[np.int32], own: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Return the groups of all requests (N,), from those of the client's: all others are in one further group."""
    of_all = np.full(len(own), numbers.max(initial=-1) + 1, dtype=np.int32)
    of_all[own] = numbers
    return of_all


def part_of_client(energies: RequestEnergies, own: npt.NDArray[np.bool_], groups: int) -> RequestEnergies:
    """Return the energies of the client's requests, and of its groups; those of the others are unassigned.

    Half-widths of sums over all requests keep their ratios.
    """
    whole = energies.divided
    divided = DividedEnergy(whole.prefill_j[own], whole.decode_j[own], whole.idle_j[own])
    prefill_j, decode_j = float(divided.prefill_j.sum()), float(divided.decode_j.sum())
    all_j = float(whole.dynamic_j.sum())
    return replace(
        energies,
        divided=divided,
        half_j=energies.half_j[own],
        group_half_j=energies.group_half_j[:groups],
        total_half_j=float(energies.group_half_j[:groups].sum()),
        unassigned_j=energies.unassigned_j + float(energies.total_j[~own].sum()),
        prefill=_scaled(energies.prefill, prefill_j),
        decode=_scaled(energies.decode, decode_j),
        other_half_j=energies.other_half_j * (prefill_j + decode_j) / all_j if all_j else 0.0,
    )


def _scaled(whole: EnergyPart | None, joules: float) -> EnergyPart | None:
    return EnergyPart(joules, whole.half_j * joules / whole.joules) if whole and whole.joules else whole
