"""Polling threads on GPUs that answer, hang and fail on demand."""

import math
import threading
import time
from itertools import pairwise

import pynvml
import pytest

from wattline.contract.metrics import GPU_FAN, GPU_TEMPERATURE
from wattline_exporter.sensors.nvml.messages import MessageWriter
from wattline_exporter.sensors.nvml.polling_threads import (
    MAX_GPUS_PER_THREAD,
    PolledGpu,
    PollingThreads,
)
from wattline_exporter.sensors.nvml.schedule import SamplingSchedule
from wattline_exporter.sensors.readings import (
    Device,
    GpuFailure,
    GpuInfo,
    GpuProcess,
    GpuProcessList,
    Poll,
    Reading,
    ReadingChanges,
    SamplingOrder,
    boottime,
)

FAST = 0.02


class AttachedGpu:
    """Replaces `NvmlGpu`."""

    def __init__(self, index):
        self.info = GpuInfo(str(index), f"GPU-{index}", "test", "", "", "")
        self.responds = threading.Event()
        self.responds.set()
        self.call_started = threading.Event()
        self.fails_with = None
        self.current = [Reading(GPU_TEMPERATURE, (str(index), self.info.uuid, "gpu"), 40.0)]
        self.has_counter = True

    def poll(self):
        now = boottime()
        self.call_started.set()
        self.responds.wait()
        if self.fails_with:
            raise pynvml.NVMLError(self.fails_with)
        return Poll(
            Device("gpu", self.info.uuid), now, boottime(), 1.0 if self.has_counter else None, 100.0
        )

    def readings(self):
        yield from self.current

    def processes(self):
        return [GpuProcess(7, 100, 0.5)]


class RecordingWriter(MessageWriter):
    """Keeps the items instead of writing them."""

    def __init__(self, schedule):
        super().__init__(schedule)
        self.sent = []

    def put(self, item):
        self.sent.append((boottime(), item))

    def items(self, kind, since_s=0.0):
        return [
            item for at_s, item in list(self.sent) if isinstance(item, kind) and at_s >= since_s
        ]

    def polls_of(self, gpu, since_s=0.0):
        return sum(poll.device.id == gpu.info.uuid for poll in self.items(Poll, since_s))


class Node:
    def __init__(self, gpus, period_s=FAST):
        self.schedule = SamplingSchedule(SamplingOrder(period_s=period_s))
        self.writer = RecordingWriter(self.schedule)
        self.reattached = []
        self.threads = PollingThreads(self.schedule, self.writer, reattach=self.reattached.append)
        self.polled = []
        for index, gpu in enumerate(gpus):
            self.polled.append(PolledGpu(index))
            self.polled[-1].attach(gpu)
            self.threads.add(self.polled[-1])

    def until(self, condition):
        give_up = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < give_up
            self.threads.isolate_slow_gpus()
            time.sleep(0.01)


@pytest.fixture
def gpus():
    fake_gpus = [AttachedGpu(i) for i in range(3)]
    yield fake_gpus
    for gpu in fake_gpus:
        gpu.fails_with = pynvml.NVML_ERROR_GPU_IS_LOST  # ends its thread
        gpu.responds.set()


def test_polling_threads_responsive_gpus_share_one_thread(gpus):
    node = Node(gpus)
    node.until(lambda: all(node.writer.polls_of(gpu) >= 10 for gpu in gpus))

    assert len(node.threads) == 1


def test_polling_threads_hanging_gpu_is_isolated_and_recovers(gpus):
    node = Node(gpus)
    polls_of = node.writer.polls_of
    node.until(lambda: polls_of(gpus[2]) > 2)
    gpus[1].responds.clear()
    gpus[1].call_started.clear()
    gpus[1].call_started.wait()
    before = [polls_of(gpu) for gpu in gpus]
    node.until(lambda: polls_of(gpus[0]) > before[0] + 20 and polls_of(gpus[2]) > before[2] + 20)

    assert polls_of(gpus[1]) == before[1]
    gpus[1].responds.set()
    node.until(lambda: polls_of(gpus[1]) > before[1] + 5)
    since_s = boottime()
    node.until(lambda: polls_of(gpus[0], since_s) > 20)
    assert polls_of(gpus[0], since_s) == pytest.approx(polls_of(gpus[1], since_s), abs=6)
    assert node.reattached == []


def test_polling_threads_all_but_one_hanging_polls_the_last(gpus):
    node = Node(gpus)
    for gpu in gpus[:2]:
        node.until(lambda: node.writer.polls_of(gpus[2]) > 2)
        gpu.responds.clear()
        gpu.call_started.clear()
        node.until(gpu.call_started.is_set)
    since_s = boottime()
    node.until(lambda: node.writer.polls_of(gpus[2], since_s) > 20)


def test_polling_threads_failing_gpu_is_reported_and_reattached(gpus):
    node = Node(gpus)
    node.until(lambda: node.writer.polls_of(gpus[1]) > 2)
    gpus[1].fails_with = pynvml.NVML_ERROR_GPU_IS_LOST
    node.until(lambda: node.reattached)

    assert node.reattached == [node.polled[1]]
    assert node.writer.items(GpuFailure) == [GpuFailure(1, "GPU is lost")]
    gpus[1].fails_with = None
    node.polled[1].attach(gpus[1])
    since_s = boottime()
    node.threads.add(node.polled[1])
    node.until(lambda: node.writer.polls_of(gpus[1], since_s) > 2)


def test_polling_threads_17_gpus_use_three_threads():
    many = [AttachedGpu(i) for i in range(2 * MAX_GPUS_PER_THREAD + 1)]
    node = Node(many)
    node.until(lambda: all(node.writer.polls_of(gpu) > 2 for gpu in many))

    assert len(node.threads) == 3
    for gpu in many:
        gpu.fails_with = pynvml.NVML_ERROR_GPU_IS_LOST
    node.until(lambda: len(node.reattached) == len(many))
    node.until(lambda: len(node.threads) == 0)


def test_polled_gpu_read_sends_only_changed_and_removed_readings(gpus):
    gpu = gpus[0]
    fan = Reading(GPU_FAN, ("0", "GPU-0"), 0.3)
    temperature = gpu.current[0]
    gpu.current = [temperature, fan]
    node = Node([gpu], period_s=1.0)
    polled = PolledGpu(0)
    polled.attach(gpu)
    for current in ([temperature, fan], [temperature, fan._replace(value=0.4)], [temperature]):
        gpu.current, polled._readings_s = current, -math.inf  # due again
        polled.read(node.writer, processes_every_s=1e9)

    sent = [changes for changes in node.writer.items(ReadingChanges) if changes.uuid == "GPU-0"][
        -2:
    ]
    assert sent == [
        ReadingChanges.of("GPU-0", [fan._replace(value=0.4)]),
        ReadingChanges.of("GPU-0", [], [(GPU_FAN.name, ("0", "GPU-0"))]),
    ]
    listed = node.writer.items(GpuProcessList)[0]
    assert listed == GpuProcessList("GPU-0", (GpuProcess(7, 100, 0.5),), listed.read_s)


def test_polling_threads_processes_may_be_read_more_often_than_readings(gpus):
    node = Node(gpus[:1])
    node.schedule.follow(SamplingOrder(node.schedule.period_s, processes_every_s=0.1))
    node.until(lambda: len(node.writer.items(GpuProcessList)) >= 10)

    assert len(node.writer.items(GpuProcessList)) >= 3 * len(node.writer.items(ReadingChanges))


def test_polling_threads_gpu_without_counter_is_polled_fast_without_runs(gpus):
    gpus[0].has_counter = False
    node = Node(gpus[:1], period_s=30.0)
    node.until(lambda: node.writer.polls_of(gpus[0]) > 10)


def test_polling_threads_calls_slower_than_the_period_do_not_overlap(gpus):
    node = Node(gpus)
    slow = gpus[0]
    quick_poll = slow.poll
    slow.poll = lambda: (time.sleep(3 * FAST), quick_poll())[1]
    node.until(lambda: node.writer.polls_of(slow) > 10)
    polls = [poll for poll in node.writer.items(Poll) if poll.device.id == slow.info.uuid]

    assert all(later.before_s >= earlier.after_s for earlier, later in pairwise(polls))
