"""The intensities held, when to ask for more, and what counts while no one answers."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise

import aiohttp

from exporter.model import Slot, SourceError
from exporter.sources.carbon.cache import CarbonCache, Held
from exporter.sources.carbon.provider import DAY_S, Provider, StatusError
from exporter.sources.carbon.static import StaticIntensity

KEEP_S = 2 * DAY_S
AHEAD_S = 3 * DAY_S
FIRST_BACK_OFF_S = 60.0
LAST_BACK_OFF_S = 900.0
JITTER_S = (5.0, 35.0)
"""After a slot's end, so that the next is there, and not with every other node at once."""

log = logging.getLogger(__name__)


class CarbonFeed:
    """Slots of one provider in order; where they end and it does not answer, those of `fallback`, if there is one.

    An outage costs nothing while a forecast that is already held covers the time. `chance` gives 0 to 1.
    """

    def __init__(
        self,
        provider: Provider,
        now: Callable[[], float] = time.time,
        *,
        fallback: StaticIntensity | None = None,
        cache: CarbonCache | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.provider = provider
        self.basis = provider.basis
        self.fetched_s: float | None = None
        """Unix time at which the provider last answered."""
        self._now = now
        self._chance = chance
        self._fallback = fallback
        self._cache = cache
        self._slots: tuple[Slot, ...] = ()
        self._failures = 0
        self._failed_s: float | None = None
        self._asked_s = 0.0
        self._due_s = 0.0
        self._remembered = False
        self._remember()

    @property
    def due_s(self) -> float:
        """Unix time at which `refresh` is due: at once in the beginning, and where the clock was set back since."""
        return self._due_s if self._now() >= self._asked_s else 0.0

    async def refresh(self, session: aiohttp.ClientSession) -> None:
        """Ask the provider, but for a first time at which what the disk held is not due.

        Raises SourceError, which says what counts until it answers.
        """
        if self._remembered and self._now() < self.due_s:
            self._remembered = False
            self._must_hold_the_present()
            return
        self._asked_s = self._now()
        try:
            current = await self._fetch(session)
        except SourceError as error:
            await self._failed(error)
            raise self._with_what_counts(error) from error
        if self._failed_s is not None:
            log.info("%s answers again after %.0f s, and counts from now on", self._title, self._now() - self._failed_s)
        self._failures, self._failed_s, self.fetched_s = 0, None, self._now()
        earliest_s, latest_s = JITTER_S
        self._due_s = current.end_s + earliest_s + (latest_s - earliest_s) * self._chance()
        await self._keep()

    def _must_hold_the_present(self) -> None:
        if self._held_at(self._now()) is None:
            wait_s = self.due_s - self._now()
            left_alone = SourceError(
                f"{self.provider.name} asked to be left alone", f"it is asked again in {wait_s:.0f} s"
            )
            raise self._with_what_counts(left_alone)

    async def _fetch(self, session: aiohttp.ClientSession) -> Slot:
        """The slot in force, once the answer is merged into what is held."""
        slots = await self.provider.slots(session, self._now())
        self._merge(slots)
        current = next((slot for slot in slots if slot.begin_s <= self._now() < slot.end_s), None)
        if current is None:
            raise SourceError(f"{self.provider.name} gave no slot for the time now", "is the clock right? try: date")
        return current

    async def _failed(self, error: SourceError) -> None:
        wait_s = min(FIRST_BACK_OFF_S * 2**self._failures, LAST_BACK_OFF_S) * (0.75 + 0.5 * self._chance())
        told_s = error.after_s if isinstance(error, StatusError) else 0.0
        self._due_s = self._now() + max(wait_s, told_s * (1 + 0.1 * self._chance()))
        self._failures = min(self._failures + 1, 10)
        if self._failed_s is None:
            self._failed_s = self._now()
        if told_s:
            await self._keep()  # a restart does not forget that it was told to wait

    def _with_what_counts(self, error: SourceError) -> SourceError:
        return SourceError(error.cause, f"{error.remedy}; {self._what_counts()}")

    def _what_counts(self) -> str:
        fallback = self._fallback
        then = (
            f"the yearly mean of {fallback.region}, {fallback.grams_per_kwh:g} gCO2eq/kWh (static)"
            if fallback
            else "nothing, so that emissions are absent"
        )
        now_s = self._now()
        until_s = now_s
        while (slot := self._held_at(until_s)) is not None:
            until_s = slot.end_s
        if until_s == now_s:
            return f"until it answers, what counts is {then}"
        until = datetime.fromtimestamp(until_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
        return f"until it answers, what it said before counts to {until}, then {then}"

    @property
    def _title(self) -> str:
        return f"carbon intensity ({self.basis}) of {self.provider.name} for {self.provider.region}"

    def slot_at(self, t_s: float) -> Slot | None:
        """The slot in force at `t_s` (Unix seconds): held, or the fallback's once the provider failed; else None."""
        held = self._held_at(t_s)
        if held is None and self._fallback and self._failed_s is not None:
            return self._fallback.slot(t_s)
        return held

    def forecast_at(self, t_s: float) -> Slot | None:
        """What the provider itself forecast for `t_s`."""
        held = self._held_at(t_s)
        return held if held and held.quality == "forecast" else None

    def _held_at(self, t_s: float) -> Slot | None:
        slots = self._slots
        after = bisect_right(slots, t_s, key=lambda slot: slot.begin_s)
        return slots[after - 1] if after and t_s < slots[after - 1].end_s else None

    def _merge(self, slots: Sequence[Slot]) -> None:
        """What is new counts, but an actual makes way for actuals only. Replaced at once: readers may be threads."""
        actual = {slot.begin_s for slot in self._slots if slot.quality == "actual"}
        new = _orderly(slot for slot in slots if slot.quality == "actual" or slot.begin_s not in actual)
        begins = [slot.begin_s for slot in new]

        def untouched(slot: Slot) -> bool:
            before = bisect_right(begins, slot.begin_s)
            is_free = slot.quality == "actual" or not before or new[before - 1].end_s <= slot.begin_s
            return is_free and slot.begin_s not in begins

        oldest_s, latest_s = self._now() - KEEP_S, self._now() + AHEAD_S
        merged = _orderly([*new, *(slot for slot in self._slots if untouched(slot))])
        self._slots = tuple(slot for slot in merged if slot.end_s > oldest_s and slot.begin_s < latest_s)

    def _remember(self) -> None:
        held = self._cache.get(self.basis) if self._cache else None
        if held is None or (held.provider, held.region) != (self.provider.name, self.provider.region):
            return
        self._merge(held.slots(self.basis))
        now_s = self._now()
        if held.fetched_s > now_s:
            return  # the clock was set back: ask
        self.fetched_s = held.fetched_s or None
        self._remembered = True
        self._asked_s, self._due_s = held.fetched_s, min(held.due_s, now_s + 1.1 * DAY_S)
        if now_s < self._due_s and self._held_at(now_s) is None:
            self._failed_s = now_s  # it was told to wait, and waits on

    async def _keep(self) -> None:
        if self._cache:
            fetched_s = self.fetched_s or 0.0
            held = Held.of(self.provider.name, self.provider.region, fetched_s, self._due_s, self._slots)
            await asyncio.to_thread(self._cache.save, self.basis, held)


@dataclass(frozen=True, slots=True)
class CarbonFeeds:
    """At most one feed a basis, so that averages and marginals are never mixed."""

    feeds: tuple[CarbonFeed, ...] = ()

    def __post_init__(self) -> None:
        bases = [feed.basis for feed in self.feeds]
        if len(set(bases)) < len(bases):
            raise ValueError(f"two providers of one basis: {', '.join(feed.provider.name for feed in self.feeds)}")

    def slots_at(self, t_s: float) -> tuple[Slot, ...]:
        """The slots in force at `t_s` (Unix seconds), one a basis; none for a basis that nothing is known of."""
        return tuple(slot for feed in self.feeds if (slot := feed.slot_at(t_s)) is not None)


def _orderly(slots: Iterable[Slot]) -> list[Slot]:
    """By their begin, each ending where the next begins at the latest; of two with one begin the later given."""
    by_begin = {slot.begin_s: slot for slot in slots}
    ordered = [by_begin[begin_s] for begin_s in sorted(by_begin)]
    for n, (slot, following) in enumerate(pairwise(ordered)):
        if slot.end_s > following.begin_s:
            ordered[n] = replace(slot, end_s=following.begin_s)
    return ordered
