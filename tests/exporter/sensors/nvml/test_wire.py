"""Frames between worker and daemon."""

import asyncio
from io import BytesIO

import msgspec
import pytest

from wattline.contract.metrics import GPU_FAN, GPU_TEMPERATURE
from wattline_exporter.sensors.nvml.wire import (
    MAX_BYTES,
    FrameTooLongError,
    InvalidFrameError,
    decode_items,
    decode_order,
    encode_items,
    encode_order,
    next_frame,
    read_frames,
)
from wattline_exporter.sensors.readings import (
    Device,
    DriverGone,
    GpuCount,
    GpuFailure,
    GpuInfo,
    GpuProcess,
    GpuProcessList,
    Poll,
    Reading,
    ReadingChanges,
    SamplingOrder,
    XidError,
    XidReporting,
)

POLL = Poll(Device("gpu", "GPU-0"), 1.5, 1.501, 300.0, 250.5, None)
FAN = Reading(GPU_FAN, ("0", "GPU-0"), 0.3)
ITEMS = [
    POLL,
    GpuCount(2),
    GpuInfo("0", "GPU-0", "H200", "Hopper", "0000:18:00.0", "580.95"),
    ReadingChanges.of("GPU-0", [FAN], [(GPU_TEMPERATURE.name, ("0", "GPU-0"))]),
    GpuProcessList("GPU-0", (GpuProcess(7, 100, 0.5), GpuProcess(8, None, None, "MIG-1")), 1.75),
    XidReporting("GPU-0"),
    XidError("GPU-0", 79),
    GpuFailure(1, "GPU is lost"),
    DriverGone("Driver Not Loaded", unloaded=True),
    POLL._replace(before_s=2.0, after_s=2.1),
]


def contents(written):
    """Return the contents of the frames, as the worker and as the daemon reads them."""

    async def streamed():
        stream = asyncio.StreamReader()
        stream.feed_data(written)
        stream.feed_eof()
        found = []
        while (content := await next_frame(stream)) is not None:
            found.append(content)
        return found

    read = list(read_frames(BytesIO(written)))
    assert asyncio.run(streamed()) == read
    return read


def test_items_of_every_type_survive_encoding_in_order():
    (content,) = contents(encode_items(ITEMS))

    assert decode_items(content) == ITEMS


def test_poll_is_an_array_of_its_name_and_fields_in_messagepack():
    frame = encode_items([POLL])

    assert frame[:4] == len(frame[4:]).to_bytes(4, "big")
    assert msgspec.msgpack.decode(frame[4:]) == [
        ["Poll", ["gpu", "GPU-0"], 1.5, 1.501, 300.0, 250.5, None, None]
    ]


def test_reading_changes_keep_metric_labels_and_value():
    (content,) = contents(encode_items([ITEMS[3]]))
    (changes,) = decode_items(content)

    assert changes.changed() == (FAN,)


def test_order_survives_encoding():
    order = SamplingOrder(period_s=0.047, burst_s=0.3, processes_every_s=1.0)
    (content,) = contents(encode_order(order))

    assert decode_order(content) == order


def test_frames_several_are_read_in_order():
    written = encode_items([POLL]) + encode_items([]) + encode_items(ITEMS)

    assert [decode_items(content) for content in contents(written)] == [[POLL], [], ITEMS]


@pytest.mark.parametrize("cut", [1, 4, 10])
def test_frame_incomplete_at_the_end_is_dropped(cut):
    first = encode_items([POLL])

    assert contents(first + encode_items(ITEMS)[:cut]) == [first[4:]]


def test_frame_longer_than_the_limit_is_refused_by_its_length():
    written = (MAX_BYTES + 1).to_bytes(4, "big")

    with pytest.raises(FrameTooLongError, match="more than 4194304 bytes"):
        list(read_frames(BytesIO(written)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        msgspec.msgpack.encode([["Pool", 1]]),
        msgspec.msgpack.encode([["Poll", ["gpu", "GPU-0"], 1.0]]),
        msgspec.msgpack.encode([["GpuCount", "2"]]),
        b"\x91\x92\xa8GpuC\xffunt\x02",
    ],
    ids=["empty", "JSON", "unknown type", "missing field", "text for a number", "not UTF-8"],
)
def test_content_malformed_is_refused(content):
    with pytest.raises(InvalidFrameError, match="sent an invalid message: "):
        decode_items(content)
