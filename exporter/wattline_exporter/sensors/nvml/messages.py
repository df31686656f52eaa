"""Messages between the NVML worker process and the daemon.

A frame is a length of 4 bytes, big-endian, and that many bytes of MessagePack. The worker writes
lists of `WorkerItem` to stdout. The daemon writes `SamplingOrder`s to its stdin.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, NoReturn

import msgspec

from wattline_exporter.sensors.nvml.schedule import CHECK_S, SamplingSchedule
from wattline_exporter.sensors.readings import Poll, SamplingOrder, WorkerItem

if TYPE_CHECKING:
    import asyncio  # the worker does without, which saves it 2 MB

EXIT_BEHIND = 1
"""Exit code of a worker whose parent did not read for too long."""
EXIT_NO_DRIVER = 3
"""Exit code of a worker that lost the driver."""
MAX_BYTES = 4 * 1024 * 1024
"""Longest frame that is read."""
MAX_POLLS = 20_000
"""Polls kept for a daemon that does not read: 15 s of 64 GPUs. Beyond, the older half is dropped.

A GPU's own counter bridges the gap. Without a counter the time counts as not covered.
"""
MAX_OTHER_ITEMS = 4_000
"""Other items kept. They cannot be dropped, since readings are sent only when they change: beyond,
the worker exits.
"""
MAX_FRAME_BYTES = 256 * 1024
"""Longest frame that is written, since the daemon does nothing else while it decodes one. A single
larger item is sent whole.
"""

_LENGTH_BYTES = 4
_write_lock = threading.Lock()
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


async def receive_items(stream: asyncio.StreamReader) -> list[WorkerItem] | None:
    """Return the items of the next frame; None at the end, also amid a frame.

    Raises FrameTooLongError and InvalidFrameError.
    """
    try:
        length = _checked_length(await stream.readexactly(_LENGTH_BYTES))
        content = await stream.readexactly(length)
    except EOFError:  # IncompleteReadError is one
        return None
    return decode_items(content)


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


class MessageWriter:
    """Collects items from all threads and writes those of a short time as one frame."""

    def __init__(self, schedule: SamplingSchedule) -> None:
        self._schedule = schedule
        self._filled = threading.Event()
        self._lock = threading.Lock()
        self._items: list[WorkerItem] = []
        self._polls = 0

    def put(self, item: WorkerItem) -> None:
        """Queue an item. End the process where too many items that cannot be dropped wait for the
        daemon.
        """
        with self._lock:
            self._items.append(item)
            is_first = len(self._items) == 1
            if isinstance(item, Poll):
                self._polls += 1
                if self._polls > MAX_POLLS:
                    self._drop_older_polls()
            elif len(self._items) - self._polls > MAX_OTHER_ITEMS:
                os._exit(EXIT_BEHIND)
        if is_first:  # the writer takes all items that wait
            self._filled.set()

    def _drop_older_polls(self) -> None:
        """Drop the older half of the polls. The caller holds the lock."""
        positions = [
            position for position, item in enumerate(self._items) if isinstance(item, Poll)
        ]
        first_kept = positions[len(positions) // 2]
        older: list[WorkerItem] = [
            item for item in self._items[:first_kept] if not isinstance(item, Poll)
        ]
        self._items = older + self._items[first_kept:]
        self._polls = len(positions) - len(positions) // 2

    def run(self, check: Callable[[], None]) -> NoReturn:
        """Write items as they come; call `check` after each message, and regularly where there are
        none.
        """
        while True:
            if self._filled.wait(self._schedule.check_every_s()):
                self._wait_for_others(check)
                self._filled.clear()
                self.flush()
            check()

    def _wait_for_others(self, check: Callable[[], None]) -> None:
        """Wait while items gather for one frame, until an order; call `check` as often as it needs.

        An order asks for polls at once, so that earlier ones do not delay them.
        """
        wait_s = self._schedule.coalesce_s()
        while wait_s > CHECK_S:
            if self._schedule.pause(CHECK_S):
                return
            check()
            wait_s -= CHECK_S
        self._schedule.pause(wait_s)

    def flush(self) -> None:
        with self._lock:
            items = self._items
            self._items = []
            self._polls = 0
        try:
            with _write_lock:
                for frame in _frames(items):
                    _write(frame)
        except BrokenPipeError:
            os._exit(0)

    def exit(self, code: int) -> NoReturn:
        """Write what waits and end the process, whose other threads may hang in the driver."""
        self.flush()
        with _write_lock:
            os._exit(code)


def _frames(items: Sequence[WorkerItem]) -> Iterator[bytes]:
    """Yield as few frames as possible, in order, so that a GPU is announced before its polls."""
    if not items:
        return
    frame = encode_items(items)
    if len(frame) <= MAX_FRAME_BYTES or len(items) == 1:
        yield frame
        return
    half = len(items) // 2
    yield from _frames(items[:half])
    yield from _frames(items[half:])


def _write(frame: bytes) -> None:
    """Write the whole frame: one longer than the pipe's buffer takes several writes."""
    while frame:
        frame = frame[os.write(1, frame) :]
