"""NVML polling threads; a GPU whose driver call hangs is isolated in its own thread.

One thread polls up to eight GPUs in turn. A thread per GPU would wake up 170 times a second for
eight GPUs instead of 21 times, and wake-ups are most of the cost.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable

import pynvml

from wattline_exporter.sensors.nvml.card import driver_is_gone, is_unloaded
from wattline_exporter.sensors.nvml.gpu import NvmlGpu
from wattline_exporter.sensors.nvml.messages import EXIT_NO_DRIVER, MessageWriter
from wattline_exporter.sensors.nvml.schedule import FAST_S, SamplingSchedule
from wattline_exporter.sensors.readings import (
    DriverGone,
    GpuFailure,
    GpuProcessList,
    Reading,
    ReadingChanges,
    ReadingKey,
    boottime,
)

READINGS_EVERY_S = 1.0
FAILED_S = 0.9
"""Time for which a GPU's calls must fail before it is attached again: shorter errors only skip
polls.

Idle GPUs are polled once a second, so that their second failure counts.
"""
SLOW_CALL_S = 0.1
"""Driver call that is isolated, since it delays the other GPUs of its thread."""
REJOIN_S = 60.0
"""Time without a slow call after which an isolated GPU shares a thread again."""
MAX_GPUS_PER_THREAD = 8
OFFSET_S = 0.0015
"""Offset between threads, so that their polls fall into the same few milliseconds but not on the
same instant.
"""
_DUE_SHARE = 0.98
"""Share of a period after which a reading is due, so that a round slightly early does not skip it.
"""


class PolledGpu:
    """One GPU, and when each part of it was last read."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.needs_fast_polls = False
        self._gpu: NvmlGpu | None = None
        self._sent: dict[ReadingKey, Reading] = {}
        self._readings_s = self._processes_s = -math.inf
        self._failing_since_s: dict[str, float] = {}
        """Start of the current series of failed calls, by the name of the call."""

    def attach(self, gpu: NvmlGpu) -> None:
        """Start with a newly attached GPU, of which everything is sent again."""
        self._gpu = gpu
        self._sent = {}
        self._readings_s = self._processes_s = -math.inf
        self._failing_since_s = {}

    @property
    def is_failing(self) -> bool:
        """True while the latest call of any kind failed."""
        return bool(self._failing_since_s)

    def has_failed(self, call: str, now: float, *, error: bool) -> bool:
        """Note the outcome of a call; return whether it has failed for FAILED_S."""
        if not error:
            self._failing_since_s.pop(call, None)
            return False
        return now - self._failing_since_s.setdefault(call, now) >= FAILED_S

    def overdue_s(self, now: float, processes_every_s: float) -> float:
        """Return how late the readings or the processes are, whichever is later."""
        late_s = now - self._readings_s - READINGS_EVERY_S * _DUE_SHARE
        return max(late_s, now - self._processes_s - processes_every_s * _DUE_SHARE)

    def poll(self, writer: MessageWriter) -> None:
        """Read energy and power. Raises NVMLError, and may hang."""
        assert self._gpu
        poll = self._gpu.poll()
        self.needs_fast_polls = poll.counter_j is None
        writer.put(poll)

    def read(self, writer: MessageWriter, processes_every_s: float) -> None:
        """Read the values that are due, and send those that changed. Raises NVMLError, and may
        hang.
        """
        assert self._gpu
        now = boottime()
        uuid = self._gpu.info.uuid
        if now >= self._readings_s + READINGS_EVERY_S * _DUE_SHARE:
            self._readings_s = now
            readings = {
                (reading.metric.name, reading.labels): reading for reading in self._gpu.readings()
            }
            changed = [
                reading for key, reading in readings.items() if self._sent.get(key) != reading
            ]
            removed = self._sent.keys() - readings.keys()
            self._sent = readings
            if changed or removed:
                writer.put(ReadingChanges.of(uuid, changed, removed))
        if now >= self._processes_s + processes_every_s * _DUE_SHARE:
            self._processes_s = now
            writer.put(GpuProcessList(uuid, tuple(self._gpu.processes()), now))


class _PollingThread:
    """GPUs that one thread polls. `busy_with` and `busy_since_s` are set during a driver call."""

    def __init__(self, number: int, gpus: list[PolledGpu]) -> None:
        self.number = number
        self.gpus = gpus
        self.busy_with: PolledGpu | None = None
        self.busy_since_s = math.inf
        self.isolated_since_s: float | None = None
        """When its one GPU was isolated after a slow call."""


class PollingThreads:
    """All polling threads. `reattach` is called with a GPU that failed."""

    def __init__(
        self,
        schedule: SamplingSchedule,
        writer: MessageWriter,
        reattach: Callable[[PolledGpu], None],
    ) -> None:
        self._schedule = schedule
        self._writer = writer
        self._reattach = reattach
        self._lock = threading.Lock()
        self._threads: list[_PollingThread] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._threads)

    def add(self, gpu: PolledGpu) -> None:
        with self._lock:
            self._assign(gpu)

    def _assign(self, gpu: PolledGpu) -> None:
        """Give the GPU to the first thread with room, else to a new one. The caller holds the
        lock.
        """
        for thread in self._threads:
            if thread.isolated_since_s is None and len(thread.gpus) < MAX_GPUS_PER_THREAD:
                thread.gpus.append(gpu)
                return
        self._start([gpu])

    def _start(self, gpus: list[PolledGpu]) -> None:
        thread = _PollingThread(next(self._numbers), gpus)
        self._threads.append(thread)
        threading.Thread(target=self._run, args=(thread,), daemon=True).start()

    def isolate_slow_gpus(self) -> None:
        """Leave each GPU in a slow driver call to the thread that waits for it; move the others to
        a new thread.
        """
        now = boottime()
        with self._lock:
            for thread in list(self._threads):
                slow = thread.busy_with
                if slow is None or now - thread.busy_since_s < SLOW_CALL_S:
                    continue
                others = [gpu for gpu in thread.gpus if gpu is not slow]
                thread.gpus = [slow]
                thread.isolated_since_s = now
                if others:
                    self._start(others)

    def _run(self, thread: _PollingThread) -> None:
        while True:
            with self._lock:
                self._rejoin(thread)
                gpus = list(thread.gpus)
                if not gpus:
                    self._threads.remove(thread)
                    return
            self._round(thread, gpus)
            fast = any(gpu.needs_fast_polls for gpu in gpus)
            self._schedule.wait(thread.number * OFFSET_S, at_most_s=FAST_S if fast else None)

    def _rejoin(self, thread: _PollingThread) -> None:
        if thread.isolated_since_s is not None and boottime() - thread.isolated_since_s > REJOIN_S:
            gpus = thread.gpus
            thread.gpus = []
            for gpu in gpus:
                self._assign(gpu)

    def _round(self, thread: _PollingThread, gpus: list[PolledGpu]) -> None:
        """Poll each GPU, and read the other values of the most overdue GPUs."""
        for gpu in gpus:
            self._call_driver(thread, gpu, self._poll)
        now = boottime()
        every_s = self._schedule.processes_every_s
        overdue = [(late_s, gpu) for gpu in gpus if (late_s := gpu.overdue_s(now, every_s)) >= 0]
        due = [gpu for _, gpu in sorted(overdue, key=lambda item: -item[0])]
        for gpu in due[: self._schedule.reads_a_round()]:
            self._call_driver(thread, gpu, self._read)

    def _poll(self, gpu: PolledGpu) -> None:
        gpu.poll(self._writer)

    def _read(self, gpu: PolledGpu) -> None:
        gpu.read(self._writer, self._schedule.processes_every_s)

    def _call_driver(
        self, thread: _PollingThread, gpu: PolledGpu, call: Callable[[PolledGpu], None]
    ) -> None:
        """Run `call` if the GPU still belongs to the thread. A GPU that fails for FAILED_S is
        attached again.
        """
        with self._lock:
            if gpu not in thread.gpus:
                return
            thread.busy_with, thread.busy_since_s = gpu, boottime()
        try:
            call(gpu)
            if gpu.is_failing:
                gpu.has_failed(call.__name__, 0.0, error=False)
        except pynvml.NVMLError as error:
            if driver_is_gone(error):
                self._writer.put(GpuFailure(gpu.index, str(error)))
                self._writer.put(DriverGone(str(error), unloaded=is_unloaded(error)))
                self._writer.exit(EXIT_NO_DRIVER)
            if gpu.has_failed(call.__name__, boottime(), error=True):
                self._writer.put(GpuFailure(gpu.index, str(error)))
                with self._lock:
                    thread.gpus.remove(gpu)
                self._reattach(gpu)
        finally:
            thread.busy_with = None
