"""Service that keeps the carbon intensities up to date."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import aiohttp

from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.sensors.carbon.feed import CarbonFeed, CarbonFeeds, carbon_readings
from wattline_exporter.sensors.carbon.transport import AiohttpTransport
from wattline_exporter.sensors.readings import Reading, Service, SourceError, boottime

PERIOD_S = 86_400.0
"""Age at which a feed is late: forecasts reach two days ahead, so an outage of a day loses nothing.
"""


class CarbonService(Service):
    """Refreshes each feed when it is due. `live` has the feeds' health."""

    def __init__(self, feeds: CarbonFeeds, live: LiveState) -> None:
        self._feeds = feeds.feeds
        self._live = live

    async def start(self) -> None:
        """Load the feeds that need no network: the first tick already needs their intensities."""
        async with aiohttp.ClientSession() as session:
            for feed in self._feeds:
                if not feed.is_fetched:
                    await self._refresh(feed, session)

    async def run(self) -> None:
        """Refresh the feeds until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for feed in self._feeds:
                tasks.create_task(self._follow(feed))

    def readings(self) -> Iterator[Reading]:
        """Yield the intensities in force now."""
        return carbon_readings(self._feeds, time.time())

    async def _follow(self, feed: CarbonFeed) -> None:
        async with aiohttp.ClientSession() as session:
            if feed.is_fetched:
                await self._refresh(feed, session)
            while True:
                while time.time() < feed.due_s:  # noqa: ASYNC110  # the wall clock may be set meanwhile
                    await asyncio.sleep(min(10.0, max(0.1, feed.due_s - time.time())))
                await self._refresh(feed, session)

    async def _refresh(self, feed: CarbonFeed, session: aiohttp.ClientSession) -> None:
        name = "carbon" if feed is self._feeds[0] else f"carbon_{feed.basis}"
        started_s = boottime()
        try:
            batch = await feed.refresh(AiohttpTransport(session))
        except SourceError as error:
            self._live.failed(name, error, boottime() - started_s, PERIOD_S)
        else:
            self._live.take_batch(name, batch, boottime() - started_s, PERIOD_S)
