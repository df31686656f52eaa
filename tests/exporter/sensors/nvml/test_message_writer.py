"""Messages that a worker writes while the daemon does not read."""

import subprocess
import sys
from io import BytesIO
from itertools import chain

from wattline_exporter.sensors.nvml.message_writer import MAX_FRAME_BYTES, MAX_POLLS
from wattline_exporter.sensors.nvml.wire import EXIT_BEHIND, decode_items, read_frames
from wattline_exporter.sensors.readings import GpuInfo, Poll

WRITER = """
from wattline_exporter.sensors.readings import (
    Device, GpuInfo, GpuProcess, GpuProcessList, Poll, ReadingChanges
)
from wattline_exporter.sensors.nvml.message_writer import MAX_OTHER_ITEMS, MAX_POLLS, MessageWriter
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
