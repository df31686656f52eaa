"""Route of OTLP/HTTP traces: content types, compression, size limits and errors."""

from __future__ import annotations

import asyncio
import zlib
from typing import Protocol

from aiohttp import web

from wattline_exporter.sensors.readings import RunError

MAX_COMPRESSED_BYTES = 8 * 1024 * 1024
MAX_DECODED_BYTES = 32 * 1024 * 1024
MAX_JSON_BYTES = MAX_COMPRESSED_BYTES
"""Largest JSON without its compression: its parser takes twelve times the memory."""
BODY_TIMEOUT_S = 10.0
_TYPES = {"application/x-protobuf": False, "application/json": True}


class TraceApi(Protocol):
    """Receiver of traces, which raises RunError. See `wattline_exporter.requests.otlp.receiver`."""

    async def receive(self, body: bytes, *, is_json: bool) -> bytes: ...

    def encode_error(self, status: int, detail: str, *, is_json: bool) -> bytes: ...


RECEIVER = web.AppKey("receiver", TraceApi)


async def receive_traces(request: web.Request) -> web.Response:
    """Answer in the format of the request, as OTLP/HTTP requires; errors are a
    google.rpc.Status.
    """
    receiver = request.app[RECEIVER]
    is_json = _TYPES.get(request.content_type)
    if is_json is None:
        raise RunError(415, "send traces as application/x-protobuf or application/json (OTLP/HTTP)")
    headers = {"Content-Type": request.content_type}
    try:
        body = await _body(request, MAX_JSON_BYTES if is_json else MAX_DECODED_BYTES)
        return web.Response(body=await receiver.receive(body, is_json=is_json), headers=headers)
    except RunError as error:
        if error.retry_after_s:
            headers["Retry-After"] = str(error.retry_after_s)
        status = receiver.encode_error(error.status, error.detail, is_json=is_json)
        return web.Response(status=error.status, body=status, headers=headers)


async def _body(request: web.Request, max_decoded: int) -> bytes:
    """Return the body without its compression, of a limited size. Raises RunError."""
    chunks: list[bytes] = []
    left = MAX_COMPRESSED_BYTES
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.content.iter_any():
                chunks.append(chunk)
                left -= len(chunk)
                if left < 0:
                    raise RunError(
                        413, f"the body exceeds {MAX_COMPRESSED_BYTES} bytes; send smaller batches"
                    )
    except TimeoutError as error:
        raise RunError(
            408, f"the body was not received within {BODY_TIMEOUT_S:g} s; send it faster"
        ) from error
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    match request.headers.get("Content-Encoding", "identity").lower():
        case "identity":
            return body
        case "gzip":
            return await asyncio.to_thread(_gunzip, body, max_decoded)
        case other:
            raise RunError(415, f"Content-Encoding: expected gzip or none, not {other[:40]!r}")


def _gunzip(body: bytes, max_decoded: int) -> bytes:
    unzip = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        decoded = unzip.decompress(body, max_decoded)
    except zlib.error as error:
        raise RunError(400, f"the body is not gzip: {error}") from error
    if unzip.unconsumed_tail:
        raise RunError(
            413, f"the decompressed body exceeds {max_decoded} bytes; send smaller batches"
        )
    if not unzip.eof:
        raise RunError(400, "the gzip body is incomplete; send it completely")
    if unzip.unused_data:
        raise RunError(400, "the gzip body has data after its end; send one gzip member")
    return decoded
