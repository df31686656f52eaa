"""Emissions told again, by the intensities that are known now of the slots in which the run's joules were drawn. Pure.

The ledger's figure is that of the intensities that were known while the run was on, forecasts among them; it stands,
and this one stands beside it. Average and marginal are restated apart.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from analyzer.carbon.emissions import Emission
from analyzer.carbon.intensity import CarbonSlot, Past, PastSlot, share
from analyzer.energy import devices
from analyzer.model.interval import JOULES_PER_KWH, Interval
from analyzer.model.report import Report
from analyzer.model.samples import RunFrames, Samples, samples
from analyzer.model.timeline import Window
from exporter.contract import metrics as m

_Slot = TypeVar("_Slot", PastSlot, CarbonSlot)
_Z_95 = 1.96
_ZONES = {"cpu": "package", "dram": "dram"}
Lines = Mapping[tuple[str, str], Sequence[Samples]]
"""By instance and component: energy that only rises, in joules, by which a device's own is shared out over time."""


@dataclass(frozen=True, slots=True)
class RestatedSlot:
    """`energy` in joules by component, of all nodes, in one slot; `before_g_per_kwh` is what was known then.

    `provider` is not the one that was asked where another's intensity stands in; no intensity is known where it is "".
    """

    start_s: float
    end_s: float
    provider: str
    quality: str
    grams_per_kwh: float | None
    before_g_per_kwh: float | None
    energy: Mapping[str, Interval]
    sigma_g_per_kwh: float | None = None

    @property
    def energy_j(self) -> float:
        return math.fsum(energy.value for energy in self.energy.values())

    @property
    def mass_g(self) -> float | None:
        return None if self.grams_per_kwh is None else self.energy_j / JOULES_PER_KWH * self.grams_per_kwh


@dataclass(frozen=True, slots=True)
class Restatement:
    """`ledger_g` is what the exporters counted of the same components, `difference_ratio` by how much this is more."""

    past: Past
    slots: tuple[RestatedSlot, ...]
    emissions: tuple[Emission, ...]
    ledger_g: float | None
    difference_ratio: float | None

    @property
    def mass_g(self) -> float:
        return math.fsum(emission.mass_g.value for emission in self.emissions)

    def share_of(self, quality: str) -> float:
        """Of the energy; that of "" has no intensity."""
        whole_j = math.fsum(slot.energy_j for slot in self.slots)
        return math.fsum(slot.energy_j for slot in self.slots if slot.quality == quality) / whole_j if whole_j else 0.0


def restate(
    frames: RunFrames, report: Report, windows: Mapping[str, Window], past: Past, static_g_per_kwh: float | None = None
) -> Restatement:
    """`static_g_per_kwh` stands in where neither `past` nor what the run saw tells an intensity."""
    lines = energy_lines(frames, report)
    parts = [
        part
        for instance, window in windows.items()
        for part in _of_instance(report, instance, (window.start_s, window.end_s), lines, past)
    ]
    if static_g_per_kwh is not None:
        parts = [part if part.provider else _static(part, static_g_per_kwh) for part in parts]
    slots = tuple(_joined(parts))
    emissions = tuple(_emissions(past.basis, slots, report.estimated))
    ledger_g, ratio = _against_ledger(report, past.basis, emissions)
    return Restatement(past, slots, emissions, ledger_g, ratio)


def energy_lines(frames: RunFrames, report: Report) -> dict[tuple[str, str], list[Samples]]:
    """What has no counter here is not in it: its energy is shared out by time."""
    found = {(instance, "gpu"): lines for instance, lines in devices.energy_lines(frames, list(report.devices)).items()}
    for device in report.devices:
        zone = _ZONES.get(device.component)
        if zone:
            where = {"instance": device.instance, "package": device.device, "zone": zone}
            counter = samples(frames.raw, m.CPU_ENERGY, **where)
            if len(counter) > 1:
                rises_j = np.maximum(np.diff(counter.value), 0.0)
                line = Samples(counter.t, np.concatenate([[0.0], rises_j]).cumsum())
                found.setdefault((device.instance, device.component), []).append(line)
    return found


def _of_instance(
    report: Report, instance: str, window_s: tuple[float, float], lines: Lines, past: Past
) -> Iterator[RestatedSlot]:
    seen = _Slots([slot for slot in report.carbon_slots if (slot.instance, slot.basis) == (instance, past.basis)])
    now = _Slots(past.slots)
    own: dict[str, list[Interval]] = defaultdict(list)
    for device in report.devices:
        if device.instance == instance:
            own[device.component].append(device.energy)
    whole = {component: _sum(each) for component, each in own.items()}
    for start_s, end_s in _pieces(window_s, [*now.slots, *seen.slots]):
        energy = {
            component: joules.scaled(
                share(lines.get((instance, component), ()), (start_s, end_s), window_s, joules.value)
            )
            for component, joules in whole.items()
        }
        told = now.over(start_s, end_s), seen.over(start_s, end_s)
        yield _slot(RestatedSlot(start_s, end_s, "", "", None, None, energy), past.provider, *told)


def _pieces(window_s: tuple[float, float], slots: Iterable[PastSlot | CarbonSlot]) -> Iterator[tuple[float, float]]:
    """The window cut wherever a slot begins or ends."""
    start_s, end_s = window_s
    edges = {edge_s for slot in slots for edge_s in (slot.start_s, slot.end_s) if start_s < edge_s < end_s}
    cuts = [start_s, *sorted(edges), end_s]
    return pairwise(cuts)


class _Slots(Generic[_Slot]):
    """Slots that do not overlap, found by time."""

    def __init__(self, slots: Iterable[_Slot]) -> None:
        self.slots: list[_Slot] = sorted(slots, key=lambda slot: slot.start_s)
        self._begins_s: list[float] = [slot.start_s for slot in self.slots]

    def over(self, start_s: float, end_s: float) -> _Slot | None:
        """The one that holds all of that time."""
        place = bisect_right(self._begins_s, start_s) - 1
        return self.slots[place] if place >= 0 and end_s <= self.slots[place].end_s else None


def _slot(empty: RestatedSlot, provider: str, now: PastSlot | None, then: CarbonSlot | None) -> RestatedSlot:
    """By what is known now; else by what the run saw, labelled with its own provider."""
    before = then.grams_per_kwh if then else None
    if now:
        known = replace(empty, provider=provider, quality=now.quality, grams_per_kwh=now.grams_per_kwh)
        return replace(known, before_g_per_kwh=before, sigma_g_per_kwh=now.sigma_g_per_kwh)
    if then:
        quality = f"{then.quality} as before" if provider else then.quality
        return replace(empty, provider=then.provider, quality=quality, grams_per_kwh=before, before_g_per_kwh=before)
    return empty


def _static(slot: RestatedSlot, grams_per_kwh: float) -> RestatedSlot:
    return replace(slot, provider="given", quality="static", grams_per_kwh=grams_per_kwh)


def _joined(parts: Iterable[RestatedSlot]) -> list[RestatedSlot]:
    """In the order of time; nodes are added, and pieces of the same intensity that touch are one."""
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
            component: _sum([one[component] for one in (slot.energy, part.energy) if component in one])
            for component in dict.fromkeys([*slot.energy, *part.energy])
        }
        found[alike] = replace(slot, end_s=max(slot.end_s, part.end_s), energy=energy)
    return found


def _alike(slot: RestatedSlot, part: RestatedSlot) -> bool:
    told = ("provider", "quality", "grams_per_kwh", "before_g_per_kwh", "sigma_g_per_kwh")
    return all(getattr(slot, name) == getattr(part, name) for name in told)


def _sum(parts: Sequence[Interval]) -> Interval:
    known = [part.half for part in parts if part.half is not None]
    return Interval(math.fsum(part.value for part in parts), math.fsum(known) if len(known) == len(parts) else None)


def _emissions(basis: str, slots: Sequence[RestatedSlot], estimated: frozenset[str]) -> Iterator[Emission]:
    """By component and quality. Halves of slots add up, as one sensor's errors share a sign; the intensity's own is
    counted where the source tells one for every slot: σ² = C² (σ_E² / E² + σ_I² / I²).
    """
    known = [slot for slot in slots if slot.grams_per_kwh is not None]
    with_sigma = all(slot.sigma_g_per_kwh is not None for slot in known)
    groups: dict[tuple[str, str], list[tuple[Interval, RestatedSlot]]] = defaultdict(list)
    for slot in known:
        for component, energy in slot.energy.items():
            groups[component, slot.quality].append((energy, slot))
    for (component, quality), parts in sorted(groups.items()):
        mass = _sum([energy.scaled((slot.grams_per_kwh or 0.0) / JOULES_PER_KWH) for energy, slot in parts])
        if with_sigma and mass.half is not None:
            by_intensity = math.fsum(
                energy.value / JOULES_PER_KWH * _Z_95 * (slot.sigma_g_per_kwh or 0.0) for energy, slot in parts
            )
            mass = Interval(mass.value, math.hypot(mass.half, by_intensity))
        yield Emission(component, basis, quality, "restated", mass, component in estimated)


def _against_ledger(report: Report, basis: str, emissions: Sequence[Emission]) -> tuple[float | None, float | None]:
    """The ledger's grams of the components that both count, and the relative difference; None where it has none."""
    ledger = [one for one in report.emissions if (one.basis, one.origin) == (basis, "ledger")]
    both = {one.component for one in ledger} & {one.component for one in emissions}
    if not both:
        return None, None
    before_g = math.fsum(one.mass_g.value for one in ledger if one.component in both)
    now_g = math.fsum(one.mass_g.value for one in emissions if one.component in both)
    return before_g, now_g / before_g - 1 if before_g > 0 else None


def as_seen(frames: RunFrames, report: Report, windows: Mapping[str, Window]) -> list[Emission]:
    """Of a range that no run tagged, for which no exporter counted grams: by the slots that were in force."""
    found: list[Emission] = []
    for basis in dict.fromkeys(slot.basis for slot in report.carbon_slots):
        by_slot = restate(frames, report, windows, Past("", "", basis))
        found += [replace(one, origin="by slot") for one in by_slot.emissions]
    return found
