"""Carbon intensity slots in force during a run, and the GPUs' energy in each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from wattline.contract.metrics import (
    CARBON_INTENSITY,
    CARBON_INTENSITY_TIMESTAMP,
    SOURCE_UP,
    Metric,
)
from wattline_analyzer.core.emissions import CarbonSlot
from wattline_analyzer.core.sample_table import SampleTable, rows_of
from wattline_analyzer.core.samples import distinct
from wattline_analyzer.core.timeline import EnergyTracks


class ScrapedSlot(NamedTuple):
    """Intensity of a slot that a scrape shows, and the start of the slot."""

    region: str
    provider: str
    quality: str
    grams_per_kwh: float
    begin_s: float


@dataclass(frozen=True, slots=True)
class SlotPiece:
    """A part of the run with one slot in force; `slot` is None where none was."""

    start_s: float
    end_s: float
    slot: ScrapedSlot | None

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


def carbon_slots(
    raw: SampleTable, tracks: EnergyTracks, windows_s: Mapping[str, tuple[float, float]]
) -> list[CarbonSlot]:
    """Split each instance's window at the slots of the intensity, each with its part of the GPUs'
    energy.

    Each basis has separate rows, which must not be added up over bases.
    """
    found: list[CarbonSlot] = []
    known = rows_of(raw, CARBON_INTENSITY)
    for instance, basis in sorted(
        set(zip(known.texts("instance"), known.texts("basis"), strict=True))
    ):
        window_s = windows_s.get(instance)
        for piece in slot_pieces(raw, instance, basis, window_s) if window_s else ():
            if piece.slot:
                edges_s = np.array([piece.start_s, piece.end_s])
                mine = tracks.get((instance, "gpu"), ())
                joules = (
                    math.fsum(float(np.diff(one.values(edges_s))[0]) for one in mine)
                    if mine
                    else None
                )
                where = (
                    instance,
                    piece.slot.region,
                    piece.slot.provider,
                    basis,
                    piece.slot.quality,
                )
                found.append(
                    CarbonSlot(piece.start_s, piece.end_s, *where, piece.slot.grams_per_kwh, joules)
                )
    return found


def slot_pieces(
    raw: SampleTable, instance: str, basis: str, window_s: tuple[float, float]
) -> list[SlotPiece]:
    """Split the window where another slot came into force, or none was; return nothing without
    scrapes.

    A slot is in force from its start, one of another provider from the scrape that shows it. No
    slot is in force between scrapes that show none. A slot that was revised counts with its last
    value.
    """
    start_s, end_s = window_s
    found: list[SlotPiece] = []
    last_key: object = ...
    last_s = -math.inf
    for t_s, slot in _states(raw, instance, basis, start_s, end_s):
        key = (slot.region, slot.provider, slot.begin_s) if slot else None
        if key == last_key:
            found[-1] = SlotPiece(found[-1].start_s, end_s, slot)
        else:
            begin_s = start_s if not found else max(_begin_s(slot, last_key, last_s, t_s), start_s)
            if found:
                found[-1] = SlotPiece(found[-1].start_s, min(begin_s, end_s), found[-1].slot)
            found.append(SlotPiece(begin_s, end_s, slot))
        last_key = key
        last_s = t_s
    return [piece for piece in found if piece.start_s < piece.end_s]


def _begin_s(slot: ScrapedSlot | None, before: object, last_s: float, t_s: float) -> float:
    """Return when the slot at `t_s`, absent at `last_s`, came into force; `before` is None where
    none was before.
    """
    if slot is not None and last_s < slot.begin_s <= t_s:
        return slot.begin_s
    return last_s if before is None else t_s


def _states(
    raw: SampleTable, instance: str, basis: str, start_s: float, end_s: float
) -> Iterator[tuple[float, ScrapedSlot | None]]:
    """Yield the slot in force at each scrape; None where there was none."""
    begins = dict(_shown(raw, CARBON_INTENSITY_TIMESTAMP, instance, basis))
    slots = {
        key[0]: ScrapedSlot(*key[1:], grams, begins[key])
        for key, grams in _shown(raw, CARBON_INTENSITY, instance, basis)
        if key in begins
    }
    times = distinct(np.array([*rows_of(raw, SOURCE_UP, instance=instance).t, *slots]))
    first = np.searchsorted(times, start_s) - 1
    after = np.searchsorted(times, end_s, side="right") + 1
    for t_s in times[max(first, 0) : after].tolist():
        yield t_s, slots.get(t_s)


def _shown(
    raw: SampleTable, metric: Metric, instance: str, basis: str
) -> Iterator[tuple[tuple[float, str, str, str], float]]:
    """Yield the values of a metric by time, region, provider and quality."""
    rows = rows_of(raw, metric, instance=instance, basis=basis)
    columns = rows.texts("region"), rows.texts("provider"), rows.texts("quality")
    yield from zip(zip(rows.t.tolist(), *columns, strict=True), rows.value.tolist(), strict=True)
