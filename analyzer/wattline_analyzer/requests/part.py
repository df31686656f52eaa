"""Part of the requests of a server: those of one client, or of a part of the time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wattline.figures import Figure, sum_of_correlated
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.requests.table import RequestTable
from wattline_exporter.requests.division.division import DividedEnergy, RequestEnergies
from wattline_exporter.requests.division.totals import EnergyPart


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    """Energy of a server's devices in a part of the time, in joules, and the part of it that is
    idle energy.
    """

    span_s: tuple[float, float]
    joules: float
    idle_j: float


def ended_in(table: RequestTable, part_s: tuple[float, float]) -> npt.NDArray[np.bool_]:
    """Return the mask of the requests that end in a part of the time, (N,): each one is in one of
    several parts.
    """
    ended_s = table.spans.ended_s
    result: npt.NDArray[np.bool_] = (ended_s > part_s[0]) & (ended_s <= part_s[1])
    return result


def with_others(
    numbers: npt.NDArray[np.int32], own: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    """Return the groups of all requests (N,), from those of the own ones: all others are in one
    further group.
    """
    of_all = np.full(len(own), numbers.max(initial=-1) + 1, dtype=np.int32)
    of_all[own] = numbers
    return of_all


def part_of_requests(
    energies: RequestEnergies,
    own: npt.NDArray[np.bool_] | None,
    groups: int,
    measured: MeasuredPart | None,
) -> RequestEnergies:
    """Return the energies of the own requests, and of their groups; the rest of what was measured
    is unassigned.

    Half-widths of sums over all requests keep their ratios. Without a part, all energies are
    returned.
    """
    if own is None or measured is None:
        return energies
    whole = energies.divided
    divided = DividedEnergy(whole.prefill_j[own], whole.decode_j[own], whole.idle_j[own])
    prefill_j, decode_j, idle_j = (
        _sum_j(each) for each in (divided.prefill_j, divided.decode_j, divided.idle_j)
    )
    all_j = _sum_j(whole.prefill_j) + _sum_j(whole.decode_j)
    nothing = Figure(0.0, 0.0)  # the energy of no request is 0 exactly
    total = sum_of_correlated(
        [nothing, *(Figure(0.0, half_j) for half_j in energies.group_half_j[:groups].tolist())]
    )
    return replace(
        energies,
        divided=divided,
        half_j=energies.half_j[own],
        group_half_j=energies.group_half_j[:groups],
        total_half_j=total.known_half_width,
        unassigned_j=measured.joules - (prefill_j + decode_j + idle_j),
        measured_j=measured.joules,
        idle_j=measured.idle_j,
        idle_half_j=_half_of_part_j(energies.idle_j, energies.idle_half_j, measured.idle_j),
        prefill=part_of_phase(energies.prefill, prefill_j),
        decode=part_of_phase(energies.decode, decode_j),
        other_half_j=_half_of_part_j(all_j, energies.other_half_j, prefill_j + decode_j),
        idle_known=energies.idle_known[own],
    )


def _sum_j(joules: FloatArray) -> float:
    return float(joules.sum())


def _half_of_part_j(whole_j: float, half_j: float, part_j: float) -> float:
    """Return the half-width of a part that has the relative error of the whole; 0 of nothing."""
    if not whole_j:
        return 0.0
    return Figure(whole_j, half_j).scaled(part_j / whole_j).known_half_width


def part_of_phase(whole: EnergyPart | None, joules: float) -> EnergyPart | None:
    """Return a part of the energy of a phase, with the relative error of the whole."""
    if whole is None or not whole.joules:
        return whole
    return EnergyPart(joules, _half_of_part_j(whole.joules, whole.half_j, joules))
