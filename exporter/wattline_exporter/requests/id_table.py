"""Set of 64-bit hashes in an array, which is read and extended for a whole call at a time."""

from __future__ import annotations

import numpy as np

from wattline_exporter.requests.division.arrays import IntArray, Mask

_LEAST_SLOTS = 64
_MOST_FULL = 0.4
"""Part of the slots that are in use, at most; the next hashes double their number."""
_FEW = 8
"""Hashes that are faster one by one than by array operations."""


class IdTable:
    """Hashes by open addressing with linear probing: each one is in the first free slot from its
    lowest bits on.

    A slot with 0 is free, so no hash may be 0. `expected` is the number of hashes for which there
    is room at first.
    """

    def __init__(self, expected: int = 0) -> None:
        self._slots = _empty(expected)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def contains(self, hashes: IntArray) -> Mask:
        """Return the mask of the hashes that are in the table."""
        if not self._count:
            return np.zeros(len(hashes), dtype=bool)
        if len(hashes) <= _FEW:
            return self._contains_few(hashes)
        last = len(self._slots) - 1
        at = hashes & last
        held = self._slots.take(at)
        found: Mask = held == hashes
        (left,) = np.nonzero((held != 0) & ~found)
        at = at[left]
        wanted = hashes[left]
        while len(left) > _FEW:
            at = (at + 1) & last
            held = self._slots.take(at)
            is_here = held == wanted
            found[left[is_here]] = True
            (further,) = np.nonzero((held != 0) & ~is_here)
            left = left[further]
            at = at[further]
            wanted = wanted[further]
        found[left] = self._contains_few(wanted)
        return found

    def _contains_few(self, hashes: IntArray) -> Mask:
        return np.array(
            [self._slots.item(self._slot(each)) == each for each in hashes.tolist()], dtype=bool
        )

    def add(self, hashes: IntArray) -> None:
        """Add different hashes that are not in the table."""
        self._count += len(hashes)
        if self._count > _MOST_FULL * len(self._slots):
            held = self._held()
            self._slots = _empty(self._count)
            self._fill(held)
        self._fill(hashes)

    def remove(self, hashes: IntArray) -> None:
        """Remove the hashes that are in the table. It takes the time of a new table."""
        held = self._held()
        held = held[~np.isin(held, hashes)]
        self._slots = _empty(len(held))
        self._count = len(held)
        self._fill(held)

    def _held(self) -> IntArray:
        held: IntArray = self._slots[self._slots != 0]
        return held

    def _slot(self, wanted: int) -> int:
        """Return the slot of one hash, or the free one where it would be."""
        last = len(self._slots) - 1
        at = wanted & last
        while (held := self._slots.item(at)) and held != wanted:
            at = (at + 1) & last
        return at

    def _fill(self, hashes: IntArray) -> None:
        last = len(self._slots) - 1
        at = hashes & last
        while len(hashes) > _FEW:
            free = self._slots.take(at) == 0
            self._slots[at[free]] = hashes[free]  # of those with the same slot, one remains
            (left,) = np.nonzero(self._slots.take(at) != hashes)
            hashes = hashes[left]
            at = (at[left] + 1) & last
        for each in hashes.tolist():
            self._slots[self._slot(each)] = each


def _empty(expected: int) -> IntArray:
    slots = _LEAST_SLOTS
    while expected > _MOST_FULL * slots / 2:
        slots *= 2
    return np.zeros(slots, dtype=np.int64)


def is_first(hashes: IntArray) -> Mask:
    """Return the mask of the hashes without the second and further ones of the same value."""
    if len(hashes) <= _FEW and len({*hashes.tolist()}) == len(hashes):
        return np.ones(len(hashes), dtype=bool)
    roughly = np.argsort(
        (hashes >> 48).astype(np.int16), kind="stable"
    )  # a radix sort, after which little is to do
    ordered = np.sort(hashes[roughly], kind="stable")
    mask = np.ones(len(hashes), dtype=bool)
    if (ordered[1:] == ordered[:-1]).any():
        mask[:] = False
        mask[np.unique(hashes, return_index=True)[1]] = True
    return mask
