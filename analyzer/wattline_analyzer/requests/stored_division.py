"""Energy that an exporter divided among the requests of a run and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattline_analyzer.core.fetch import TimeRange
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.requests.part import part_of_phase
from wattline_analyzer.requests.table import RequestTable
from wattline_exporter.requests.division.division import DividedEnergy, RequestEnergies
from wattline_exporter.requests.division.energy_rows import energies_of, row_half_widths_j
from wattline_exporter.requests.division.fit import SEPARABLE_RATIO
from wattline_exporter.requests.division.half_widths import Energies, group_half_widths_j
from wattline_exporter.requests.division.spans import EnergySlots
from wattline_exporter.requests.division.totals import DivisionTotals, EnergyPart

_LEAST_GAP_S = 0.01
"""Least time between two divided seconds that is a gap; less is an error of rounding."""


class DividedSeconds(NamedTuple):
    """Energy of a run that an exporter divided among requests and the rest.

    `seconds` (K, 5) have begin and end in Unix time, joules, idle joules, and 1 if the idle power
    is known, else 0. `totals` are the sums over all of them, None without any.
    """

    seconds: FloatArray
    totals: DivisionTotals | None

    @classmethod
    def of(cls, seconds: Sequence[Sequence[float]], totals: Sequence[str]) -> DividedSeconds:
        """Return the energy of stored rows and JSON texts. Raises ValueError for a wrong text."""
        found = [DivisionTotals.from_json(text) for text in totals]
        rows = np.array(seconds, dtype=np.float64).reshape(-1, 5)
        return cls(rows, reduce(DivisionTotals.plus, found) if found else None)

    def slots(self, span_s: TimeRange, whole_j: float | None) -> tuple[EnergySlots, FloatArray]:
        """Return slots for all of a time range, and begin and end of each part of it that is not
        divided, (G, 2).

        The energy of the range is `whole_j`, if it is known: what the divided seconds lack is in
        the time that is not divided. Else that time has no energy.
        """
        begin_s, end_s, joules, idle_j, known = self._inside(span_s).T
        edges_s = np.concatenate([span_s[:1], np.stack([begin_s, end_s], axis=1).ravel()])
        edges_s = np.append(edges_s, span_s[1])
        gaps_s = edges_s.reshape(-1, 2)
        widths_s = np.diff(gaps_s)[:, 0]
        widths_s[widths_s < _LEAST_GAP_S] = 0.0
        missing_s = float(widths_s.sum())
        gap_j = np.zeros(len(gaps_s))
        if whole_j is not None:
            lacking_j = whole_j - float(joules.sum())
            if missing_s and lacking_j > 0.0:
                gap_j = widths_s / missing_s * lacking_j
            elif joules.any():
                joules = joules * (whole_j / float(joules.sum()))
        of_slots = np.zeros((2, 2 * len(joules) + 1))
        of_slots[0, ::2] = gap_j
        of_slots[:, 1::2] = joules, idle_j
        edges_s = np.maximum.accumulate(edges_s)
        is_slot = np.diff(edges_s) >= _LEAST_GAP_S
        is_slot[1::2] = True
        edges_s = np.append(edges_s[:-1][is_slot], edges_s[-1])
        slots_j, idle_of_slots_j = of_slots[:, is_slot]
        idle_w = idle_of_slots_j / np.diff(edges_s)
        is_known = bool(len(known)) and bool(known.all())
        return EnergySlots(edges_s, slots_j, idle_w, idle_known=is_known), gaps_s[widths_s > 0.0]

    def _inside(self, span_s: TimeRange) -> FloatArray:
        """Return the parts of the seconds within a time range, in order and without overlaps."""
        rows = self.seconds[(self.seconds[:, 1] > span_s[0]) & (self.seconds[:, 0] < span_s[1])]
        rows = rows.copy()
        widths_s = rows[:, 1] - rows[:, 0]
        rows[1:, 0] = np.maximum(rows[1:, 0], rows[:-1, 1])
        rows[:, :2] = rows[:, :2].clip(*span_s)
        parts = (rows[:, 1] - rows[:, 0]) / widths_s
        rows[:, 2:4] *= parts[:, np.newaxis]
        inside: FloatArray = rows[parts > 1e-6]
        return inside


def stored_request_energies(
    table: RequestTable,
    totals: DivisionTotals | None,
    slots: EnergySlots,
    groups: npt.NDArray[np.int32],
) -> RequestEnergies:
    """Return the final energies of N requests, with the half-widths of groups (N,) of them.

    `slots` have all the energy, `totals` the sums of its division.
    """
    stored = table.energies
    assert stored is not None, "the exporter has the requests"
    count = int(groups.max(initial=-1)) + 1
    divided = DividedEnergy(*np.zeros((3, len(stored))))
    half_j = np.zeros(len(stored))
    separable = np.zeros(len(stored), dtype=bool)
    idle_known = np.zeros(len(stored), dtype=bool)
    sums: Energies | None = None
    for part, rows in stored.chunks():
        energies = energies_of(rows)
        divided.prefill_j[part] = energies.prefill_j
        divided.decode_j[part] = energies.decode_j
        divided.idle_j[part] = energies.idle_j
        half_j[part] = row_half_widths_j(rows)
        separable[part] = rows["is_separable"]
        idle_known[part] = rows["is_idle_known"]
        of_groups = energies.by_group(groups[part], count)
        sums = of_groups if sums is None else sums.plus(of_groups)
    assert sums is not None, "a table has requests"
    whole = sums.by_group(np.zeros(count, dtype=np.intp), 1)
    total_half_j = float(group_half_widths_j(whole)[0])
    phases_j = float(divided.prefill_j.sum()), float(divided.decode_j.sum())
    idle_half_j = slots.idle_ratio * float(slots.idle_j.sum())
    prefill, decode = _phases(totals, slots.idle_ratio, divided)
    role = table.only_role
    if role is not None:
        part_of_role = EnergyPart(sum(phases_j), total_half_j)
        prefill = part_of_role if role == "prefill" else None
        decode = part_of_role if role == "decode" else None
    elif not _all_separable(separable, table.untimed, (prefill, decode)):
        prefill = decode = None
    states_context = totals is not None and slots.idle_known and role != "prefill"
    return RequestEnergies(
        divided=divided,
        half_j=half_j,
        group_half_j=group_half_widths_j(sums),
        total_half_j=total_half_j,
        unassigned_j=float(slots.joules.sum()) - sum(phases_j) - float(divided.idle_j.sum()),
        measured_j=float(slots.joules.sum()),
        idle_j=float(slots.idle_j.sum()),
        idle_half_j=idle_half_j,
        prefill=prefill,
        decode=decode,
        context_token=totals.context_token() if totals and states_context else None,
        joules_of=np.array(totals.joules_of or np.zeros(4)) if totals else np.zeros(4),
        other_half_j=totals.other_ratio * sum(phases_j) if totals else 0.0,
        idle_known=idle_known,
    )


def _phases(
    totals: DivisionTotals | None, idle_ratio: float, divided: DividedEnergy
) -> tuple[EnergyPart | None, EnergyPart | None]:
    """Return the energies of all prefills and decodes, with the relative errors of the division."""
    if totals is None:
        return None, None
    whole = totals.phases(idle_ratio * float(divided.idle_j.sum()))
    sums_j = float(divided.prefill_j.sum()), float(divided.decode_j.sum())
    prefill, decode = (
        part_of_phase(each, own_j) for each, own_j in zip(whole, sums_j, strict=True)
    )
    return prefill, decode


def _all_separable(
    separable: npt.NDArray[np.bool_],
    untimed: npt.NDArray[np.bool_] | None,
    phases: Sequence[EnergyPart | None],
) -> bool:
    """Return True if the energies of all prefills and of all decodes can be stated."""
    timed = separable if untimed is None else separable[~untimed]
    return (
        bool(len(timed))
        and bool(timed.all())
        and all(each and each.half_j <= SEPARABLE_RATIO * each.joules for each in phases)
    )
