"""HTTP client of the exporter's carbon providers, and the proxy of the environment."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

import aiohttp

from wattline_exporter.sensors.carbon.provider import ProviderAccess, Reply, TransportError


class AiohttpTransport:
    """Requests of one session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        access: ProviderAccess,
        *,
        follow_redirects: bool,
    ) -> Reply:
        """Return the response. Raises TimeoutError, or TransportError."""
        try:
            async with self._session.get(
                url,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=access.timeout_s),
                allow_redirects=follow_redirects,
                proxy=environment_proxy(url),
            ) as response:
                body = await _read_body(response, access.max_body_bytes)
                retry_after = response.headers.get("Retry-After")
                return Reply(response.status, response.reason or "", retry_after, body)
        except TimeoutError:
            raise
        except (aiohttp.ClientError, ValueError) as error:  # ValueError: invalid URL
            raise TransportError(str(error) or type(error).__name__) from error


async def _read_body(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    body = b""
    async for chunk in response.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > max_bytes:
            raise TransportError(f"the response is larger than {max_bytes >> 20} MiB")
    return body


def environment_proxy(url: str) -> str | None:
    """Return the proxy of the environment. aiohttp's own lookup would also read passwords from
    ~/.netrc.
    """
    parts = urlsplit(url)
    if urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    return urllib.request.getproxies().get(parts.scheme)
