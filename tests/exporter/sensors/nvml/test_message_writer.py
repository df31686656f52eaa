"""Messages that a worker writes while the daemon does not read."""

import subprocess
import sys
from itertools import chain

from wattline_exporter.sensors.nvml.message_writer import MAX_LINE_BYTES, MAX_POLLS
from wattline_exporter.sensors.nvml.wire import EXIT_BEHIND, decode_message

WRITER = """
from wattline_exporter.sensors.readings import Device, GpuInfo, GpuProcess, Poll
from wattline_exporter.sensors.nvml.message_writer import MAX_OTHER_ITEMS, MAX_POLLS, MessageWriter
from wattline_exporter.sensors.nvml.wire import GpuProcessList, ReadingChanges
from wattline_exporter.sensors.nvml.schedule import SamplingSchedule
writer = MessageWriter(SamplingSchedule())
new_gpu = GpuInfo("1", "new", "", "", "", "")
"""


def written_by(source):
    """Return the lines that a process with this source writes, and its exit code."""
    ended = subprocess.run(
        [sys.executable, "-c", WRITER + source], stdout=subprocess.PIPE, check=False
    )
    return ended.stdout.splitlines(), ended.returncode


def test_message_writer_too_many_polls_drops_the_oldest():
    lines, code = written_by("""
device = Device("gpu", "x" * 100)
for n in range(3 * MAX_POLLS):
    if n == 2 * MAX_POLLS:
        writer.put(new_gpu)
    writer.put(Poll(device, n, n))
writer.flush()
writer.flush()
""")
    messages = [decode_message(line) for line in lines]
    numbers = [poll.before_s for poll in chain.from_iterable(message.polls for message in messages)]

    assert code == 0
    assert numbers == list(range(int(numbers[0]), 3 * MAX_POLLS))
    assert MAX_POLLS / 2 <= len(numbers) <= MAX_POLLS
    assert len(lines) > 1
    assert max(map(len, lines)) <= MAX_LINE_BYTES
    assert [[gpu.uuid for gpu in message.gpus] for message in messages if message.gpus] == [["new"]]


def test_message_writer_several_lines_announce_a_gpu_before_its_polls():
    lines, _ = written_by("""
for n in range(10_000):
    writer.put(Poll(Device("gpu", "old"), n + 0.25, n + 0.5))
writer.put(new_gpu)
writer.put(Poll(Device("gpu", "new"), 0.0, 0.0))
writer.flush()
""")
    messages = [decode_message(line) for line in lines]
    announced = next(n for n, message in enumerate(messages) if message.gpus)

    assert len(messages) > 1
    assert not [
        poll
        for message in messages[:announced]
        for poll in message.polls
        if poll.device.id == "new"
    ]
    assert "new" in [poll.device.id for poll in messages[-1].polls]


def test_message_writer_too_many_other_items_ends_the_process():
    assert written_by("""
for n in range(MAX_OTHER_ITEMS + 1):
    writer.put(ReadingChanges("GPU-0", (), ()))
print("went on")
""") == ([], EXIT_BEHIND)


def test_message_writer_item_longer_than_a_line_is_sent_whole():
    lines, _ = written_by("""
writer.put(GpuProcessList("GPU-0", (GpuProcess(1, instance="x" * 300_000),), 1.0))
writer.put(GpuProcessList("GPU-0", (GpuProcess(1, instance="y"),), 2.0))
writer.flush()
""")

    lists = [decode_message(line).process_lists for line in lines]
    assert [len(listed.processes[0].instance) for (listed,) in lists] == [300_000, 1]
