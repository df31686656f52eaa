"""Clock, scripted providers and requests to a fake API for the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime

import aiohttp
import pytest

from tests.fakes import web_api
from tests.fakes.web_api import WebApi
from wattline_exporter.sensors.carbon.feed import CarbonFeed
from wattline_exporter.sensors.carbon.provider import ProviderAccess, Web
from wattline_exporter.sensors.carbon.transport import AiohttpTransport
from wattline_exporter.sensors.readings import Slot, SourceError

NOON = datetime(2018, 1, 20, 12, 0, tzinfo=UTC)
NOON_S = 1_516_449_600.0  # date -u -d 2018-01-20T12:00Z +%s
HALF_HOUR_S = 1_800.0
HOUR_S = 3_600.0
DAY_S = 86_400.0

Visit = Callable[[WebApi, Web], Awaitable[None]]


def visit(api: WebApi, body: Visit, secret: str = "") -> None:
    """Run `body` with the API on loopback and requests to it."""

    async def run() -> None:
        async with web_api.serve(api), aiohttp.ClientSession() as session:
            await body(api, Web(AiohttpTransport(session), ProviderAccess(api.url, secret)))

    asyncio.run(run())


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Clock:
    def __init__(self, now_s: float = NOON_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Scripted:
    """A provider with scripted responses: lists of slots, or errors."""

    name = "scripted"
    region = "GB"
    basis = "average"
    base_url = "http://scripted.example"

    def __init__(self, *answers: list[Slot] | SourceError) -> None:
        self.answers = list(answers)

    async def current(self, web: Web, now_s: float) -> list[Slot]:
        answer = self.answers.pop(0)
        if isinstance(answer, SourceError):
            raise answer
        return answer


def slot(
    begin_s: float, grams: float, quality: str = "forecast", length_s: float = HALF_HOUR_S
) -> Slot:
    return Slot(begin_s, begin_s + length_s, grams, "GB", "scripted", "average", quality)


def half() -> float:
    """Return the middle of each random interval."""
    return 0.5


def feed_after(clock: Clock, *answers: list[Slot], **options) -> CarbonFeed:
    """Return a feed after it has received the responses."""
    feed = CarbonFeed(Scripted(*answers), now=clock, chance=half, **options)
    for _ in answers:
        asyncio.run(feed.refresh(None))
    return feed


def script_of(feed: CarbonFeed) -> list[list[Slot] | SourceError]:
    """Return the responses that are left."""
    assert isinstance(feed.provider, Scripted)
    return feed.provider.answers


def refresh_error(feed: CarbonFeed) -> SourceError:
    with pytest.raises(SourceError) as caught:
        asyncio.run(feed.refresh(None))
    return caught.value
