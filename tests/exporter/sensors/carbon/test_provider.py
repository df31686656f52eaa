"""Requests to carbon providers through aiohttp: limits, redirects and errors."""

from __future__ import annotations

import asyncio
from email.utils import formatdate

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.exporter.sensors.carbon.feeds import NOON, NOON_S, visit
from tests.fakes import web_api
from tests.fakes.web_api import WebApi
from wattline_exporter.sensors.carbon.provider import (
    TIMEOUT_S,
    HttpStatusError,
    ProviderAccess,
    ProviderError,
    Web,
    parse_retry_after,
)
from wattline_exporter.sensors.carbon.transport import AiohttpTransport


class Anything(BaseModel):
    pass


class Plain(WebApi):
    """Server whose `/` returns `{}`, and whose `/elsewhere` redirects to it."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/", self.root), web.get("/elsewhere", self.elsewhere)]

    async def root(self, request: web.Request) -> web.StreamResponse:
        self.seen = dict(request.headers)
        return await self.answer(request, {})

    async def elsewhere(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/")


def get(access: ProviderAccess) -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            await Web(AiohttpTransport(session), access).get("/", Anything)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("120", 120),
        (" 120 ", 120),
        ("-5", 0),
        ("1.5", 0),
        ("9" * 400, 86_400),
        ("soon", 0),
        ("Sat, 20 Jan 2018 12:10:00 GMT", 600),
        ("Sat, 20 Jan 2018 12:10:00 -0000", 600),
        ("Sat, 20 Jan 2018 11:00:00 GMT", 0),
        ("Sat, 20 Jan 2035 12:00:00 GMT", 86_400),
        ("Sat, 99 Jan 2018 12:00:00 GMT", 0),
    ],
)
def test_retry_after_is_parsed_and_at_most_a_day(value, seconds):
    assert parse_retry_after(value, NOON_S) == seconds


@given(st.text())
def test_retry_after_any_text_is_a_valid_delay(text):
    assert 0 <= parse_retry_after(text, NOON_S) <= 86_400


@pytest.mark.parametrize(("status", "told"), [("429", 600), ("503", 600), ("500", 0), ("404", 0)])
def test_retry_after_is_used_for_429_and_503_only(status, told):
    async def body(api, web):
        with pytest.raises(HttpStatusError) as caught:
            await web.get("/", Anything)
        assert caught.value.retry_after_s == told

    visit(Plain(NOON, fault=status, retry_after="600"), body)


def test_retry_after_date_is_relative_to_now():
    async def body(api, web):
        with pytest.raises(HttpStatusError) as caught:
            await web.get("/", Anything)
        assert caught.value.retry_after_s == 86_400

    visit(Plain(NOON, fault="429", retry_after=formatdate(4e9, usegmt=True)), body)


def test_slow_api_times_out():
    assert TIMEOUT_S == 10

    async def run() -> None:
        async with (
            web_api.serve(Plain(NOON, fault="slow")) as api,
            aiohttp.ClientSession() as session,
        ):
            web = Web(AiohttpTransport(session), ProviderAccess(api.url, timeout_s=0.05))
            with pytest.raises(
                ProviderError, match=r"no response within 0\.05 s; check with: curl"
            ):
                await web.get("/", Anything)

    asyncio.run(run())


def test_silent_connection_times_out():
    async def run() -> None:
        async with web_api.unresponsive_server() as url, aiohttp.ClientSession() as session:
            web = Web(AiohttpTransport(session), ProviderAccess(url, timeout_s=0.05))
            with pytest.raises(ProviderError, match=r"no response within 0\.05 s"):
                await web.get("/", Anything)

    asyncio.run(run())


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "http://no-such-host.invalid",
        "http://[::1",
        "http://127.0.0.1:99999",
        "ftp://x",
        "nonsense",
    ],
)
def test_unreachable_address_is_one_line(url):
    with pytest.raises(ProviderError, match=r"cannot fetch .*; check with: curl -i ") as caught:
        get(ProviderAccess(url))
    assert "\n" not in str(caught.value)


def test_non_http_server_is_one_line():
    async def run() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\x00\xff\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, aiohttp.ClientSession() as session:
            web = Web(AiohttpTransport(session), ProviderAccess(url, timeout_s=5))
            with pytest.raises(ProviderError, match="cannot fetch") as caught:
                await web.get("/", Anything)
        assert str(caught.value).isprintable()

    asyncio.run(run())


def test_secret_is_not_sent_to_redirects_nor_shown():
    async def body(api, web):
        credentials = {"auth-token": "s3cret"}
        with pytest.raises(HttpStatusError, match="HTTP 302 Found"):
            await web.get("/elsewhere", Anything, credentials=credentials)
        await web.get("/", Anything, credentials=credentials)
        assert api.seen["auth-token"] == "s3cret"
        assert "s3cret" not in repr(ProviderAccess(api.url, "s3cret"))

    visit(Plain(NOON), body)


def test_redirect_without_secret_is_followed():
    async def body(api, web):
        await web.get("/elsewhere", Anything)

    visit(Plain(NOON), body)


def test_credentials_are_not_those_of_netrc(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("default login joe password netrc\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))

    async def body(api, web):
        await web.get("/", Anything, credentials={"Authorization": "Bearer jwt"})
        assert api.seen["Authorization"] == "Bearer jwt"
        await web.get("/", Anything)
        assert "Authorization" not in api.seen

    visit(Plain(NOON), body)


def test_proxy_of_environment_is_used(monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def run() -> None:
        async with web_api.serve(Plain(NOON)) as proxy, aiohttp.ClientSession() as session:
            monkeypatch.setenv("http_proxy", proxy.url)
            web = Web(AiohttpTransport(session), ProviderAccess("http://provider.invalid"))
            await web.get("/", Anything)
            assert proxy.seen["Host"] == "provider.invalid"

    asyncio.run(run())
