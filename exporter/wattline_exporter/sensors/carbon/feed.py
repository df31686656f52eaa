"""Carbon intensities of one provider: refresh schedule, back-off, fallback and metrics."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from wattline.contract.metrics import (
    CARBON_FETCHED_TIMESTAMP,
    CARBON_FORECAST,
    CARBON_INTENSITY,
    CARBON_INTENSITY_TIMESTAMP,
    CARBON_SLOTS_DROPPED,
)
from wattline_exporter.sensors.carbon.cache import CachedSlots, CarbonCache, CarbonDocument
from wattline_exporter.sensors.carbon.provider import (
    DAY_S,
    Basis,
    HttpStatusError,
    ProviderAccess,
    Transport,
    Web,
    without_overlaps,
)
from wattline_exporter.sensors.carbon.providers.static import StaticIntensity
from wattline_exporter.sensors.readings import Batch, Reading, Slot, SourceError

KEEP_S = 2 * DAY_S
AHEAD_S = 3 * DAY_S
FIRST_BACK_OFF_S = 60.0
LAST_BACK_OFF_S = 900.0
JITTER_S = (5.0, 35.0)
"""Delay after a slot's end: the next is published then, and nodes do not send requests at the same
time.
"""

log = logging.getLogger(__name__)


class IntensitySource(Protocol):
    """A provider, or another exporter that has fetched its intensities."""

    @property
    def name(self) -> str: ...

    @property
    def region(self) -> str: ...

    @property
    def basis(self) -> Basis: ...

    @property
    def base_url(self) -> str:
        """Address of the intensities; empty for a table in this package."""

    async def current(self, web: Web, now_s: float) -> list[Slot]: ...


class CarbonFeed:
    """Ordered slots of one provider; `fallback` is used while none of them covers the time and
    requests fail.

    Forecasts already received bridge an outage. `chance` returns 0 to 1.
    """

    def __init__(  # noqa: PLR0913  # collaborators that tests replace
        self,
        provider: IntensitySource,
        now: Callable[[], float] = time.time,
        *,
        access: ProviderAccess | None = None,
        fallback: StaticIntensity | None = None,
        cache: CarbonCache | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.provider = provider
        self.basis = provider.basis
        self.fetched_s: float | None = None
        """Unix time of the last successful request."""
        self._access = access or ProviderAccess(provider.base_url)
        self._now = now
        self._chance = chance
        self._fallback = fallback
        self._cache = cache
        self._slots: tuple[Slot, ...] = ()
        self._failures = 0
        self._failed_s: float | None = None
        self._requested_s = 0.0
        self._due_s = 0.0
        self._is_cached = False
        self._dropped = 0
        self._load_cache()

    @property
    def due_s(self) -> float:
        """Unix time of the next request: 0 before the first one, and after the clock was set
        back.
        """
        return self._due_s if self._now() >= self._requested_s else 0.0

    @property
    def is_fetched(self) -> bool:
        """True for intensities that are fetched, False for those of a table in this package."""
        return bool(self.provider.base_url)

    async def refresh(self, transport: Transport) -> Batch:
        """Request the provider's slots, unless those in the cache are not due yet after a start.

        Return the number of invalid slots so far, and the first problem of the response. Raises
        SourceError, which describes the intensity used meanwhile.
        """
        if self._is_cached and self._now() < self.due_s:
            self._is_cached = False
            self._require_current_slot()
            return self._batch("")
        self._requested_s = self._now()
        web = Web(transport, self._access)
        try:
            current = await self._fetch(web)
        except SourceError as error:
            await self._record_failure(error)
            raise self._describe_fallback(error) from error
        if self._failed_s is not None:
            log.info("%s recovered after %.0f s", self._title, self._now() - self._failed_s)
        self._failures, self._failed_s, self.fetched_s = 0, None, self._now()
        earliest_s, latest_s = JITTER_S
        self._due_s = current.end_s + earliest_s + (latest_s - earliest_s) * self._chance()
        await self._save_cache()
        return self._batch(web.problem)

    def _batch(self, problem: str) -> Batch:
        if not self.is_fetched:
            return Batch()
        labels = (self.provider.name, self.provider.basis)
        dropped = Reading(CARBON_SLOTS_DROPPED, labels, float(self._dropped))
        text = f"{self.provider.name} sent invalid slots: {problem}; they are dropped"
        return Batch(readings=(dropped,), problems=(text,) if problem else ())

    def _require_current_slot(self) -> None:
        if self._known_at(self._now()) is None:
            wait_s = self.due_s - self._now()
            delayed = SourceError(
                f"{self.provider.name} limits the request rate",
                f"the next request is sent in {wait_s:.0f} s",
            )
            raise self._describe_fallback(delayed)

    async def _fetch(self, web: Web) -> Slot:
        """Merge the provider's slots and return the current one."""
        try:
            slots = await self.provider.current(web, self._now())
        finally:
            self._dropped += web.dropped
        self._merge(slots)
        current = next((slot for slot in slots if slot.begin_s <= self._now() < slot.end_s), None)
        if current is None:
            cause = f"{self.provider.name} has no slot for the current time"
            if web.problem:
                raise SourceError(f"{cause}: {web.problem}", "the request is repeated")
            raise SourceError(cause, "check the clock with: date")
        return current

    async def _record_failure(self, error: SourceError) -> None:
        wait_s = min(FIRST_BACK_OFF_S * 2**self._failures, LAST_BACK_OFF_S) * (
            0.75 + 0.5 * self._chance()
        )
        retry_s = error.retry_after_s if isinstance(error, HttpStatusError) else 0.0
        self._due_s = self._now() + max(wait_s, retry_s * (1 + 0.1 * self._chance()))
        self._failures = min(self._failures + 1, 10)
        if self._failed_s is None:
            self._failed_s = self._now()
        if retry_s:
            await self._save_cache()  # a restart honors the delay as well

    def _describe_fallback(self, error: SourceError) -> SourceError:
        return SourceError(error.cause, f"{error.remedy}; {self._intensity_until_recovery()}")

    def _intensity_until_recovery(self) -> str:
        fallback = self._fallback
        then = (
            f"the yearly mean of {fallback.region}, {fallback.grams_per_kwh:g} gCO2eq/kWh (static)"
            if fallback
            else "not available; emissions are not exported"
        )
        now_s = self._now()
        until_s = now_s
        while (slot := self._known_at(until_s)) is not None:
            until_s = slot.end_s
        if until_s == now_s:
            return f"until then the intensity is {then}"
        until = datetime.fromtimestamp(until_s, UTC).strftime("%Y-%m-%dT%H:%MZ")
        return f"known slots are used until {until}; after that the intensity is {then}"

    @property
    def _title(self) -> str:
        return f"carbon intensity ({self.basis}) of {self.provider.name} for {self.provider.region}"

    def slot_at(self, t_s: float) -> Slot | None:
        """Return the slot at `t_s` (Unix seconds): the provider's, or the fallback's once a request
        has failed.
        """
        slot = self._known_at(t_s)
        if slot is None and self._fallback and self._failed_s is not None:
            return self._fallback.slot_at(t_s)
        return slot

    def forecast_at(self, t_s: float) -> Slot | None:
        """Return the provider's forecast for `t_s`, if it has one."""
        slot = self._known_at(t_s)
        return slot if slot and slot.quality == "forecast" else None

    def _known_at(self, t_s: float) -> Slot | None:
        slots = self._slots
        after = bisect_right(slots, t_s, key=lambda slot: slot.begin_s)
        return slots[after - 1] if after and t_s < slots[after - 1].end_s else None

    def _merge(self, slots: Sequence[Slot]) -> None:
        """Replace known slots by new ones; only an actual replaces an actual. One assignment: other
        threads read.
        """
        new = without_overlaps(slots)
        starts = [slot.begin_s for slot in new]

        def untouched(slot: Slot) -> bool:
            before = bisect_right(starts, slot.begin_s)
            return slot.quality == "actual" or not before or new[before - 1].end_s <= slot.begin_s

        oldest_s = self._now() - KEEP_S
        latest_s = self._now() + AHEAD_S
        merged = without_overlaps([*(slot for slot in self._slots if untouched(slot)), *new])
        self._slots = tuple(
            slot for slot in merged if slot.end_s > oldest_s and slot.begin_s < latest_s
        )

    def _load_cache(self) -> None:
        cached = self._cache.get(self.basis) if self._cache else None
        if cached is None or (cached.provider, cached.region) != (
            self.provider.name,
            self.provider.region,
        ):
            return
        self._merge(cached.slots(self.basis))
        now_s = self._now()
        if cached.fetched_s > now_s:
            return  # the clock was set back
        self.fetched_s = cached.fetched_s or None
        self._is_cached = True
        self._requested_s, self._due_s = cached.fetched_s, min(cached.due_s, now_s + 1.1 * DAY_S)
        if now_s < self._due_s and self._known_at(now_s) is None:
            self._failed_s = now_s  # a delay that the provider asked for is not over

    async def _save_cache(self) -> None:
        if self._cache:
            fetched_s = self.fetched_s or 0.0
            await asyncio.to_thread(self._cache.save, self.basis, self._to_cache(fetched_s))

    def _to_cache(self, fetched_s: float) -> CachedSlots:
        return CachedSlots.of(
            self.provider.name, self.provider.region, fetched_s, self._due_s, self._slots
        )

    def shared(self) -> CachedSlots | None:
        """Return the slots for other exporters, None without a response of a provider on the
        web.
        """
        if self.fetched_s is None or not self.is_fetched:
            return None
        return self._to_cache(self.fetched_s)


@dataclass(frozen=True, slots=True)
class CarbonFeeds:
    """Feeds of the average and the marginal intensity, at most one of each, since they must not be
    mixed.
    """

    feeds: tuple[CarbonFeed, ...] = ()

    def __post_init__(self) -> None:
        bases = [feed.basis for feed in self.feeds]
        if len(set(bases)) < len(bases):
            raise ValueError(
                "more than one provider of a basis: "
                f"{', '.join(feed.provider.name for feed in self.feeds)}"
            )

    def slots_at(self, t_s: float) -> tuple[Slot, ...]:
        """Return the slot of each basis at `t_s` (Unix seconds), without unknown ones."""
        return tuple(slot for feed in self.feeds if (slot := feed.slot_at(t_s)) is not None)

    def document(self) -> CarbonDocument:
        """Return the slots of all feeds, for other exporters."""
        found = {feed.basis: slots for feed in self.feeds if (slots := feed.shared()) is not None}
        return CarbonDocument(feeds=found)


HORIZONS_H = range(1, 49)


def carbon_readings(feeds: Iterable[CarbonFeed], now_s: float) -> Iterator[Reading]:
    for feed in feeds:
        slot = feed.slot_at(now_s)
        if slot:
            labels = (slot.region, slot.provider, slot.basis, slot.quality)
            yield Reading(CARBON_INTENSITY, labels, slot.grams_per_kwh)
            yield Reading(CARBON_INTENSITY_TIMESTAMP, labels, slot.begin_s)
        if feed.fetched_s is not None and feed.is_fetched:
            yield Reading(
                CARBON_FETCHED_TIMESTAMP, (feed.provider.name, feed.basis), feed.fetched_s
            )
        for hours in HORIZONS_H:
            future = feed.forecast_at(now_s + hours * 3_600)
            if future:
                horizon = (future.region, future.provider, future.basis, str(hours))
                yield Reading(CARBON_FORECAST, horizon, future.grams_per_kwh)
