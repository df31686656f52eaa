"""Frames between worker and daemon, and messages of a worker whose daemon does not read."""

import asyncio
import subprocess
import sys
from io import BytesIO
from itertools import chain

import msgspec
import pytest

from wattline.contract.metrics import GPU_FAN, GPU_TEMPERATURE
from wattline_exporter.sensors.nvml.messages import (
    EXIT_BEHIND,
    MAX_BYTES,
    MAX_FRAME_BYTES,
    MAX_POLLS,
    FrameTooLongError,
    InvalidFrameError,
    decode_items,
    decode_order,
    encode_items,
    encode_order,
    read_frames,
    receive_items,
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


def received(written):
    """Return the items of each frame, as the daemon receives them."""

    async def streamed():
        stream = asyncio.StreamReader()
        stream.feed_data(written)
        stream.feed_eof()
        found = []
        while (items := await receive_items(stream)) is not None:
            found.append(items)
        return found

    return asyncio.run(streamed())


def test_items_of_every_type_survive_encoding_in_order():
    assert received(encode_items(ITEMS)) == [ITEMS]


def test_poll_is_an_array_of_its_name_and_fields_in_messagepack():
    frame = encode_items([POLL])

    assert frame[:4] == len(frame[4:]).to_bytes(4, "big")
    assert msgspec.msgpack.decode(frame[4:]) == [
        ["Poll", ["gpu", "GPU-0"], 1.5, 1.501, 300.0, 250.5, None, None]
    ]


def test_reading_changes_keep_metric_labels_and_value():
    (changes,) = received(encode_items([ITEMS[3]]))[0]

    assert changes.changed() == (FAN,)


def test_order_survives_encoding():
    order = SamplingOrder(period_s=0.047, burst_s=0.3, processes_every_s=1.0)
    (content,) = read_frames(BytesIO(encode_order(order)))

    assert decode_order(content) == order


def test_frames_several_are_read_in_order():
    written = encode_items([POLL]) + encode_items([]) + encode_items(ITEMS)

    assert received(written) == [[POLL], [], ITEMS]
    assert [decode_items(content) for content in read_frames(BytesIO(written))] == [
        [POLL],
        [],
        ITEMS,
    ]


@pytest.mark.parametrize("cut", [1, 4, 10])
def test_frame_incomplete_at_the_end_is_dropped(cut):
    first = encode_items([POLL])
    written = first + encode_items(ITEMS)[:cut]

    assert received(written) == [[POLL]]
    assert list(read_frames(BytesIO(written))) == [first[4:]]


def test_frame_longer_than_the_limit_is_refused_by_its_length():
    written = (MAX_BYTES + 1).to_bytes(4, "big")

    with pytest.raises(FrameTooLongError, match="more than 4194304 bytes"):
        list(read_frames(BytesIO(written)))
    with pytest.raises(FrameTooLongError, match="more than 4194304 bytes"):
        received(written)


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


WRITER = """
from wattline_exporter.sensors.readings import (
    Device, GpuInfo, GpuProcess, GpuProcessList, Poll, ReadingChanges
)
from wattline_exporter.sensors.nvml.messages import MAX_OTHER_ITEMS, MAX_POLLS, MessageWriter
from wattline_exporter.sensors.nvml.schedule import SamplingSchedule
writer = MessageWriter(SamplingSchedule())
new_gpu = GpuInfo("1", "new", "", "", "", "")
"""


def written_by(source):
    """Return the contents of the frames that a process with this source writes, and its exit
    code.
    """
    ended = subprocess.run(
        [sys.executable, "-c", WRITER + source], stdout=subprocess.PIPE, check=False
    )
    return list(read_frames(BytesIO(ended.stdout))), ended.returncode


def test_message_writer_too_many_polls_drops_the_oldest():
    frames, code = written_by("""
device = Device("gpu", "x" * 100)
for n in range(3 * MAX_POLLS):
    if n == 2 * MAX_POLLS:
        writer.put(new_gpu)
    writer.put(Poll(device, n, n))
writer.flush()
writer.flush()
""")
    messages = [decode_items(content) for content in frames]
    items = list(chain.from_iterable(messages))
    numbers = [item.before_s for item in items if isinstance(item, Poll)]

    assert code == 0
    assert numbers == list(range(int(numbers[0]), 3 * MAX_POLLS))
    assert MAX_POLLS / 2 <= len(numbers) <= MAX_POLLS
    assert len(frames) > 1
    assert max(map(len, frames)) + 4 <= MAX_FRAME_BYTES
    assert [item.uuid for item in items if isinstance(item, GpuInfo)] == ["new"]


def test_message_writer_several_frames_announce_a_gpu_before_its_polls():
    frames, _ = written_by("""
for n in range(10_000):
    writer.put(Poll(Device("gpu", "old"), n + 0.25, n + 0.5))
writer.put(new_gpu)
writer.put(Poll(Device("gpu", "new"), 0.0, 0.0))
writer.flush()
""")
    items = list(chain.from_iterable(decode_items(content) for content in frames))
    last = items[-1]

    assert len(frames) > 1
    assert items.index(GpuInfo("1", "new", "", "", "", "")) == 10_000
    assert len(items) == 10_002
    assert isinstance(last, Poll)
    assert last.device.id == "new"


def test_message_writer_too_many_other_items_ends_the_process():
    assert written_by("""
for n in range(MAX_OTHER_ITEMS + 1):
    writer.put(ReadingChanges("GPU-0", ()))
print("went on")
""") == ([], EXIT_BEHIND)


def test_message_writer_item_longer_than_a_frame_is_sent_whole():
    frames, _ = written_by("""
writer.put(GpuProcessList("GPU-0", (GpuProcess(1, instance="x" * 300_000),), 1.0))
writer.put(GpuProcessList("GPU-0", (GpuProcess(1, instance="y"),), 2.0))
writer.flush()
""")

    lists = [decode_items(content) for content in frames]
    assert [len(listed.processes[0].instance) for (listed,) in lists] == [300_000, 1]


def test_message_writer_order_ends_the_wait_for_further_items():
    frames, code = written_by("""
import os, threading, time
from wattline_exporter.sensors.readings import SamplingOrder

class LongWait(SamplingSchedule):
    def coalesce_s(self):
        return 600.0

def order_repeatedly():
    while True:
        time.sleep(0.05)
        schedule.follow(SamplingOrder())

def exit_when_written():
    if not writer._items:
        os._exit(0)

schedule = LongWait()
writer = MessageWriter(schedule)
writer.put(new_gpu)
threading.Thread(target=order_repeatedly, daemon=True).start()
writer.run(exit_when_written)
""")

    assert code == 0
    assert [decode_items(content) for content in frames] == [[GpuInfo("1", "new", "", "", "", "")]]
