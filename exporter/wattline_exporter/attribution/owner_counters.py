"""Counters of energy, emissions and GPU time by owner, which outlive the runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from wattline.contract.api import MAX_OWNERS, OTHER_OWNERS
from wattline.contract.metrics import OWNER_EMISSIONS, OWNER_ENERGY, OWNER_GPU_SECONDS, Metric
from wattline_exporter.attribution.device_loads import divide_by_weight
from wattline_exporter.sensors.readings import Reading, ReadingKey

SCRAPED_S = 65.0
"""Time for which /metrics has a new series at 0, so that each scrape up to a minute apart has that
0.
"""
RECORDED_S = 2.0
"""The same in the local history, which has a sample each second while a run is open."""
_METRICS = {metric.name: metric for metric in (OWNER_ENERGY, OWNER_EMISSIONS, OWNER_GPU_SECONDS)}
_SCALES = {OWNER_ENERGY.name: 10**6, OWNER_EMISSIONS.name: 10**9, OWNER_GPU_SECONDS.name: 10**6}
"""Amounts per joule, gram and second: microjoules, nanograms and microseconds."""

DeviceEmission = tuple[str, str, str, str]
"""Component, device, basis and quality."""


class Owner(NamedTuple):
    """Owner of a run's energy: the first labels of its counters."""

    kind: str
    owner: str
    account: str
    workload: str


NO_OWNER = Owner("none", "", "", "")
"""Owner of unattributed energy."""


class OwnerAmount(NamedTuple):
    """Value of a counter in microjoules, nanograms or microseconds. `is_shown`: a scrape may have
    seen it above 0.
    """

    amount: int
    is_shown: bool


class OwnerCounters:
    """Amounts by owner, as whole numbers that add up to those of the devices.

    A holder is a run that holds a device. `assign` sets its owner; the energy of a holder without
    an owner is unattributed. `emissions_grams` are the devices' saved emissions, which the saved
    counters include.
    """

    def __init__(
        self,
        saved: Mapping[ReadingKey, OwnerAmount] | None = None,
        emissions_grams: Mapping[DeviceEmission, float] | None = None,
    ) -> None:
        saved = saved or {}
        self._amounts = {key: stored.amount for key, stored in saved.items()}
        self._unseen: dict[ReadingKey, float | None] = {
            key: None for key, stored in saved.items() if not stored.is_shown
        }
        """Series that scrapes still have at 0, with the time of their first amount since this
        process started.
        """
        self._unrecorded: dict[ReadingKey, float] = {}
        """The same for the local history."""
        self._owners: dict[str, Owner] = {}
        self._deferred_until_s: dict[str, float] = {}
        self._deferred: dict[str, dict[ReadingKey, int]] = {}
        """Amounts of each deferred holder, by metric name and the labels after the owner's."""
        known = {Owner(*labels[:4]) for _, labels in saved}
        self._known = {
            owner for owner in known if owner != NO_OWNER and owner.owner != OTHER_OWNERS
        }
        self._changed: set[ReadingKey] = set()
        self._done_ng = {key: _nanograms(grams) for key, grams in (emissions_grams or {}).items()}
        totals: dict[tuple[str, ...], int] = {}
        for (component, _, *slot), emitted_ng in self._done_ng.items():
            totals[component, *slot] = totals.get((component, *slot), 0) + emitted_ng
        self.add_unowned(OWNER_EMISSIONS, totals)

    def assign(
        self, owners: Mapping[str, Owner], deferred_until_s: Mapping[str, float] | None = None
    ) -> None:
        """Set the owners of holders; beyond MAX_OWNERS, a new one is counted as OTHER_OWNERS of its
        kind.

        `deferred_until_s` has the holders whose owner may be found up to a time (CLOCK_BOOTTIME).
        `show` adds their amounts once they are assigned without it, or at that time.
        """
        undecided = {
            holder: s for holder, s in self._deferred_until_s.items() if holder not in owners
        }
        self._deferred_until_s = undecided | dict(deferred_until_s or {})
        for holder, owner in owners.items():
            if owner not in self._known and len(self._known) < MAX_OWNERS:
                self._known.add(owner)
            self._owners[holder] = (
                owner if owner in self._known else Owner(owner.kind, OTHER_OWNERS, "", "")
            )

    def retain(self, holders: Collection[str]) -> None:
        """Forget the owners of all other holders."""
        self._deferred_until_s = {
            holder: s for holder, s in self._deferred_until_s.items() if holder in holders
        }
        self._owners = {
            h: owner for h, owner in self._owners.items() if h in holders or h in self._deferred
        }

    def add_unowned(self, metric: Metric, totals: Mapping[tuple[str, ...], int]) -> None:
        """Add energy or emissions of the devices that no owner has to `none`, by the labels after
        the owner's.
        """
        for labels, total in totals.items():
            known = sum(
                n
                for (name, found), n in self._amounts.items()
                if name == metric.name and found[4:] == labels
            )
            key = metric.name, (*NO_OWNER, *labels)
            if total > known:
                self._amounts[key] = self._amounts.get(key, 0) + total - known
                self._changed.add(key)

    def add_energy(
        self, component: str, policy: str, microjoules: Mapping[str, int], at_s: float
    ) -> None:
        """Add energy by holder, at `at_s` (CLOCK_BOOTTIME)."""
        self._add(OWNER_ENERGY.name, (component, policy), microjoules, at_s)

    def add_emissions(
        self, key: DeviceEmission, grams: float, shares: Mapping[str, int], at_s: float
    ) -> None:
        """Divide a device's emissions up to its total `grams` by the holders' shares of its
        energy.
        """
        total_ng = _nanograms(grams)
        step_ng = total_ng - self._done_ng.get(key, 0)
        self._done_ng[key] = total_ng
        if step_ng > 0:
            component, _, basis, quality = key
            self._add(
                OWNER_EMISSIONS.name,
                (component, basis, quality),
                divide_by_weight(step_ng, shares),
                at_s,
            )

    def add_gpu_time(self, seconds: float, holders: Iterable[str], at_s: float) -> None:
        """Divide the time of a GPU equally among its holders."""
        held_us = round(seconds * _SCALES[OWNER_GPU_SECONDS.name])
        self._add(
            OWNER_GPU_SECONDS.name, (), divide_by_weight(held_us, dict.fromkeys(holders, 1.0)), at_s
        )

    def _add(
        self, name: str, labels: tuple[str, ...], amounts: Mapping[str, int], at_s: float
    ) -> None:
        for holder, amount in amounts.items():
            if holder in self._deferred_until_s:
                deferred = self._deferred.setdefault(holder, {})
                deferred[name, labels] = deferred.get((name, labels), 0) + amount
            else:
                self._add_to_owner(
                    (name, (*self._owners.get(holder, NO_OWNER), *labels)), amount, at_s
                )

    def _add_to_owner(self, key: ReadingKey, amount: int, at_s: float) -> None:
        if key not in self._amounts:
            self._amounts[key] = 0
            self._unseen[key] = self._unrecorded[key] = at_s
        self._amounts[key] += amount
        self._changed.add(key)

    def show(self, at_s: float) -> None:
        """Add the deferred amounts that are due, and show the series that have been at 0 for long
        enough.

        `at_s` is in CLOCK_BOOTTIME.
        """
        due = {
            holder
            for holder in self._deferred
            if at_s >= self._deferred_until_s.get(holder, -math.inf)
        }
        for holder in due:
            for (name, labels), amount in self._deferred.pop(holder).items():
                self._add_to_owner(
                    (name, (*self._owners.get(holder, NO_OWNER), *labels)), amount, at_s
                )
        for key, since_s in list(self._unseen.items()):
            if since_s is None:
                self._unseen[key] = at_s
            elif at_s - since_s >= SCRAPED_S:
                del self._unseen[key]
                self._changed.add(key)
        self._unrecorded = {key: s for key, s in self._unrecorded.items() if at_s - s < RECORDED_S}

    def readings(self, *, recorded: bool = False) -> Iterator[Reading]:
        """Yield all counters, new ones at 0: as in /metrics, or as `recorded` in the local
        history.
        """
        at_zero = self._unrecorded if recorded else self._unseen
        for key, amount in self._amounts.items():
            yield Reading(
                _METRICS[key[0]], key[1], 0.0 if key in at_zero else amount / _SCALES[key[0]]
            )

    def take_changes(self) -> dict[ReadingKey, OwnerAmount]:
        """Return the counters that changed since the last call."""
        changed = self._changed
        self._changed = set()
        return {key: OwnerAmount(self._amounts[key], key not in self._unseen) for key in changed}

    def put_back(self, changes: Mapping[ReadingKey, OwnerAmount]) -> None:
        """Return changes that could not be saved to the next `take_changes`."""
        self._changed |= changes.keys()


def _nanograms(grams: float) -> int:
    return int(grams * _SCALES[OWNER_EMISSIONS.name])
