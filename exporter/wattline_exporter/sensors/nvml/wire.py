"""Frames between the NVML worker process and the daemon.

A frame is a length of 4 bytes, big-endian, and that many bytes of MessagePack. The worker writes
lists of `WorkerItem` to stdout. The daemon writes `SamplingOrder`s to its stdin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING

import msgspec

from wattline_exporter.sensors.readings import SamplingOrder, WorkerItem

if TYPE_CHECKING:
    import asyncio  # the worker does without, which saves it 2 MB

EXIT_BEHIND = 1
"""Exit code of a worker whose parent did not read for too long."""
EXIT_NO_DRIVER = 3
"""Exit code of a worker that lost the driver."""
MAX_BYTES = 4 * 1024 * 1024
"""Longest frame that is read."""

_LENGTH_BYTES = 4
_encoder = msgspec.msgpack.Encoder()
_item_decoder = msgspec.msgpack.Decoder(list[WorkerItem])
_order_decoder = msgspec.msgpack.Decoder(SamplingOrder)


class FrameTooLongError(Exception):
    """The other process announced a frame of more than MAX_BYTES."""


class InvalidFrameError(Exception):
    """The content of a frame is not a list of items."""


def encode_items(items: Sequence[WorkerItem]) -> bytes:
    """Return the items as one frame."""
    return _frame(items)


def encode_order(order: SamplingOrder) -> bytes:
    """Return the order as one frame."""
    return _frame(order)


def decode_items(content: bytes) -> list[WorkerItem]:
    """Return the items in order. Raises InvalidFrameError."""
    try:
        return _item_decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidFrameError(f"sent an invalid message: {error}") from error


def decode_order(content: bytes) -> SamplingOrder:
    """Return the order. Raises msgspec.DecodeError."""
    return _order_decoder.decode(content)


async def next_frame(stream: asyncio.StreamReader) -> bytes | None:
    """Return the content of the next frame; None at the end, also amid a frame.

    Raises FrameTooLongError.
    """
    try:
        length = _checked_length(await stream.readexactly(_LENGTH_BYTES))
        return await stream.readexactly(length)
    except EOFError:  # IncompleteReadError is one
        return None


def read_frames(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the contents of all whole frames, and wait for each. Raises FrameTooLongError."""
    while len(header := stream.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
        length = _checked_length(header)
        content = stream.read(length)
        if len(content) < length:
            return
        yield content


def _frame(content: object) -> bytes:
    frame = bytearray(_LENGTH_BYTES)
    _encoder.encode_into(content, frame, _LENGTH_BYTES)
    frame[:_LENGTH_BYTES] = (len(frame) - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES)
    return bytes(frame)


def _checked_length(header: bytes) -> int:
    length = int.from_bytes(header)
    if length > MAX_BYTES:
        raise FrameTooLongError(f"wrote a frame of more than {MAX_BYTES} bytes")
    return length
