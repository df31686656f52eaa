"""Restated emissions, from carbon intensities published after the run.

The ledger's figure uses the intensities known during the run, forecasts included; it remains in the
report. Average and marginal emissions are restated separately.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

from wattline.figures import (
    JOULES_PER_KWH,
    NORMAL_95,
    Figure,
    sum_of_correlated,
    sum_of_independent,
    sum_of_one_job,
)
from wattline_analyzer.core.emissions import (
    CarbonSlot,
    Emission,
    PastIntensities,
    PastSlot,
    RestatedSlot,
    Restatement,
)
from wattline_analyzer.core.run_report import RunEnergies
from wattline_analyzer.core.timeline import EnergyTrack, EnergyTracks, Window

_Slot = TypeVar("_Slot", PastSlot, CarbonSlot)


@dataclass(frozen=True, slots=True)
class EnergyOverTime:
    """Energies of a run over its windows, and the carbon intensities of that time."""

    energies: RunEnergies
    windows: Mapping[str, Window]
    tracks: EnergyTracks
    slots: tuple[CarbonSlot, ...]


def restate(
    over_time: EnergyOverTime,
    past: PastIntensities,
    recorded: Sequence[Emission] = (),
    static_g_per_kwh: float | None = None,
) -> Restatement:
    """Restate the emissions of a run, to compare with the `recorded` ones.

    `static_g_per_kwh` is the fallback where no other intensity is known.
    """
    parts: list[RestatedSlot] = []
    division_g: defaultdict[tuple[str, str], float] = defaultdict(float)
    for instance in over_time.windows:
        own = list(_of_instance(over_time, instance, past))
        if static_g_per_kwh is not None:
            own = [part if part.provider else _static(part, static_g_per_kwh) for part in own]
        here = {
            component: tracks
            for (where, component), tracks in over_time.tracks.items()
            if where == instance
        }
        for key, grams in _division_errors(own, here):
            division_g[key] += grams
        parts += own
    slots = tuple(_merged(parts))
    estimated = over_time.energies.estimated
    emissions = tuple(_emissions(past.basis, slots, estimated, division_g))
    ledger_g, ratio = _against_ledger(recorded, past.basis, emissions)
    return Restatement(past, slots, emissions, ledger_g, ratio)


def _of_instance(
    over_time: EnergyOverTime, instance: str, past: PastIntensities
) -> Iterator[RestatedSlot]:
    window = over_time.windows[instance]
    earlier = _Slots(
        [slot for slot in over_time.slots if (slot.instance, slot.basis) == (instance, past.basis)]
    )
    now = _Slots(past.slots)
    by_component: dict[str, list[Figure]] = defaultdict(list)
    for device in over_time.energies.devices:
        if device.instance == instance:
            by_component[device.component].append(device.energy)
    whole = {component: sum_of_one_job(each) for component, each in by_component.items()}
    for start_s, end_s in _pieces((window.start_s, window.end_s), [*now.slots, *earlier.slots]):
        energy = {
            component: joules.scaled(
                _share(
                    over_time.tracks.get((instance, component), ()), start_s, end_s, joules.number
                )
            )
            for component, joules in whole.items()
        }
        intensities = now.over(start_s, end_s), earlier.over(start_s, end_s)
        yield _slot(
            RestatedSlot(start_s, end_s, "", "", None, None, energy), past.provider, *intensities
        )


def _share(tracks: Sequence[EnergyTrack], start_s: float, end_s: float, whole_j: float) -> float:
    """Return the share of the energy that was used between two times."""
    used_j = math.fsum(one.at(end_s).number - one.at(start_s).number for one in tracks)
    return used_j / whole_j if whole_j > 0 else 0.0


def _division_errors(
    parts: Sequence[RestatedSlot], tracks: Mapping[str, Sequence[EnergyTrack]]
) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the greatest error in g CO2eq by component and quality, for each border between two
    parts of a run.

    The energy at a border is interpolated between samples: one part gets too much, and the other
    lacks it.
    """
    for before, after in pairwise(parts):
        for component, ours in tracks.items():
            at = [one.at(before.end_s) for one in ours]
            error_j = math.fsum(
                max(one.number - one.limits[0], one.limits[1] - one.number) for one in at
            )
            for quality in {before.quality, after.quality}:
                grams = [
                    part.grams_per_kwh or 0.0 if part.quality == quality else 0.0
                    for part in (before, after)
                ]
                yield (component, quality), error_j / JOULES_PER_KWH * abs(grams[0] - grams[1])


def _pieces(
    window_s: tuple[float, float], slots: Iterable[PastSlot | CarbonSlot]
) -> Iterator[tuple[float, float]]:
    """Split the window wherever a slot starts or ends."""
    start_s, end_s = window_s
    edges = {
        edge_s
        for slot in slots
        for edge_s in (slot.start_s, slot.end_s)
        if start_s < edge_s < end_s
    }
    cuts = [start_s, *sorted(edges), end_s]
    return pairwise(cuts)


class _Slots(Generic[_Slot]):
    """Slots that do not overlap, searched by time."""

    def __init__(self, slots: Iterable[_Slot]) -> None:
        self.slots: list[_Slot] = sorted(slots, key=lambda slot: slot.start_s)
        self._begins_s: list[float] = [slot.start_s for slot in self.slots]

    def over(self, start_s: float, end_s: float) -> _Slot | None:
        """Return the slot that contains the whole time from `start_s` to `end_s`, or None."""
        place = bisect_right(self._begins_s, start_s) - 1
        return self.slots[place] if place >= 0 and end_s <= self.slots[place].end_s else None


def _slot(
    empty: RestatedSlot, provider: str, now: PastSlot | None, then: CarbonSlot | None
) -> RestatedSlot:
    """Add the intensity known now; if there is none, add that of the run, with its provider."""
    before = then.grams_per_kwh if then else None
    if now:
        known = replace(
            empty, provider=provider, quality=now.quality, grams_per_kwh=now.grams_per_kwh
        )
        return replace(known, before_g_per_kwh=before, sigma_g_per_kwh=now.sigma_g_per_kwh)
    if then:
        quality = f"{then.quality} as before" if provider else then.quality
        return replace(
            empty,
            provider=then.provider,
            quality=quality,
            grams_per_kwh=before,
            before_g_per_kwh=before,
        )
    return empty


def _static(slot: RestatedSlot, grams_per_kwh: float) -> RestatedSlot:
    return replace(slot, provider="given", quality="static", grams_per_kwh=grams_per_kwh)


def _merged(parts: Iterable[RestatedSlot]) -> list[RestatedSlot]:
    """Merge parts of the same intensity that overlap or adjoin, and add their energies; parts are
    from all nodes.
    """
    found: list[RestatedSlot] = []
    near: list[int] = []
    for part in sorted(parts, key=lambda part: part.start_s):
        near = [n for n in near if found[n].end_s >= part.start_s]
        alike = next((n for n in near if _alike(found[n], part)), None)
        if alike is None:
            near.append(len(found))
            found.append(part)
            continue
        slot = found[alike]
        energy = {
            component: sum_of_correlated(
                [one[component] for one in (slot.energy, part.energy) if component in one]
            )
            for component in dict.fromkeys([*slot.energy, *part.energy])
        }
        found[alike] = replace(slot, end_s=max(slot.end_s, part.end_s), energy=energy)
    return found


def _alike(slot: RestatedSlot, part: RestatedSlot) -> bool:
    names = ("provider", "quality", "grams_per_kwh", "before_g_per_kwh", "sigma_g_per_kwh")
    return all(getattr(slot, name) == getattr(part, name) for name in names)


def _emissions(
    basis: str,
    slots: Sequence[RestatedSlot],
    estimated: frozenset[str],
    division_g: Mapping[tuple[str, str], float],
) -> Iterator[Emission]:
    """Yield emissions by component and quality.

    The errors of slots are correlated, since one sensor measured them. The uncertainty of the
    intensity is included where it is known for every slot: σ² = C² (σ_E² / E² + σ_I² / I²).
    `division_g` is the error of the division of the energy among slots.
    """
    known = [slot for slot in slots if slot.grams_per_kwh is not None]
    with_sigma = all(slot.sigma_g_per_kwh is not None for slot in known)
    groups: dict[tuple[str, str], list[tuple[Figure, RestatedSlot]]] = defaultdict(list)
    for slot in known:
        for component, energy in slot.energy.items():
            groups[component, slot.quality].append((energy, slot))
    for (component, quality), parts in sorted(groups.items()):
        mass = sum_of_correlated(
            energy.scaled(slot.grams_per_kwh / JOULES_PER_KWH)
            for energy, slot in parts
            if slot.grams_per_kwh is not None
        )
        errors_g = [division_g.get((component, quality), 0.0)]
        if with_sigma:
            by_intensity_g = math.fsum(
                energy.number / JOULES_PER_KWH * NORMAL_95 * slot.sigma_g_per_kwh
                for energy, slot in parts
                if slot.sigma_g_per_kwh is not None
            )
            errors_g.append(by_intensity_g)
        mass = sum_of_independent([mass, *(Figure(0.0, error_g) for error_g in errors_g)])
        yield Emission(
            component,
            basis,
            quality,
            "restated",
            mass,
            component in estimated,
            covers_intensity=with_sigma,
        )


def _against_ledger(
    recorded: Sequence[Emission], basis: str, emissions: Sequence[Emission]
) -> tuple[float | None, float | None]:
    """Return the ledger's emissions in g CO2eq, and the relative change by the restatement.

    Both cover the components that have emissions in both. None if there are none.
    """
    ledger = [one for one in recorded if (one.basis, one.origin) == (basis, "ledger")]
    both = {one.component for one in ledger} & {one.component for one in emissions}
    if not both:
        return None, None
    before_g = math.fsum(one.mass_g.number for one in ledger if one.component in both)
    now_g = math.fsum(one.mass_g.number for one in emissions if one.component in both)
    return before_g, now_g / before_g - 1 if before_g > 0 else None


def emissions_by_slot(over_time: EnergyOverTime) -> list[Emission]:
    """Return the emissions of an untagged range, from the intensities in force at the time.

    The exporters counted none for it.
    """
    found: list[Emission] = []
    for basis in dict.fromkeys(slot.basis for slot in over_time.slots):
        by_slot = restate(over_time, PastIntensities("", "", basis))
        found += [replace(one, origin="by slot") for one in by_slot.emissions]
    return found
