"""NVML worker process: a driver call can hang and cannot be cancelled.

`python -m wattline_exporter.sensors.nvml.worker [STATE_FILE]`: with a file, the GPUs are the
simulated ones of that file. The process ends when its stdin does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pynvml

from wattline_exporter.sensors.nvml.card import driver_is_gone, is_unloaded
from wattline_exporter.sensors.nvml.driver import Nvml, XidWatch
from wattline_exporter.sensors.nvml.gpu import NvmlGpu
from wattline_exporter.sensors.nvml.messages import (
    EXIT_NO_DRIVER,
    MessageWriter,
    decode_order,
    read_frames,
)
from wattline_exporter.sensors.nvml.polling_threads import PolledGpu, PollingThreads
from wattline_exporter.sensors.nvml.schedule import SamplingSchedule
from wattline_exporter.sensors.readings import (
    DriverGone,
    GpuCount,
    GpuFailure,
    SourceError,
    XidError,
    XidReporting,
)

RETRY_S = 5.0
FIRST_RETRY_S = 0.1
"""Time until the second attempt to attach a GPU; it doubles up to RETRY_S."""
SCAN_GPUS_S = 5.0
XID_WAIT_S = 10.0


class NvmlSampler:
    """Starts NVML, attaches the GPUs and reports XID errors, in threads that may hang in the
    driver.
    """

    def __init__(self, nvml: Nvml, schedule: SamplingSchedule, writer: MessageWriter) -> None:
        self._nvml = nvml
        self._writer = writer
        self._xids: XidWatch | None = None
        self.threads = PollingThreads(schedule, writer, reattach=self._attach_in_thread)

    def run(self) -> None:
        """Attach the GPUs, then watch for GPUs that are added or removed."""
        try:
            self._nvml.open()
            count = self._nvml.count()
        except (SourceError, pynvml.NVMLError) as error:
            self._exit(error)
            return
        self._writer.put(GpuCount(count))
        bound = self._nvml.bound()
        self._xids = XidWatch(self._nvml.api)
        for index in range(count):
            self._attach_in_thread(PolledGpu(index))
        threading.Thread(target=self._report_xids, args=(self._xids,), daemon=True).start()
        # NVML lists the GPUs when it is initialized: other GPUs need a new process
        while self._count(count) == count and self._nvml.bound() == bound:
            time.sleep(SCAN_GPUS_S)
        self._writer.put(DriverGone("the GPUs of this node have changed"))
        self._writer.exit(EXIT_NO_DRIVER)

    def _count(self, previous: int) -> int:
        try:
            return self._nvml.count()
        except pynvml.NVMLError:
            return previous  # the polling threads report what failed

    def _attach_in_thread(self, gpu: PolledGpu) -> None:
        threading.Thread(target=self._attach, args=(gpu,), daemon=True).start()

    def _attach(self, gpu: PolledGpu) -> None:
        wait_s = FIRST_RETRY_S
        while True:
            try:
                attached = self._nvml.gpu(gpu.index)
            except pynvml.NVMLError as error:
                self._writer.put(GpuFailure(gpu.index, str(error)))
                if driver_is_gone(error):
                    self._exit(error)
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, RETRY_S)
                continue
            self._writer.put(attached.info)
            gpu.attach(attached)
            self.threads.add(gpu)
            self._register(attached)
            return

    def _register(self, gpu: NvmlGpu) -> None:
        try:
            if self._xids and self._xids.register(gpu.handle):
                self._writer.put(XidReporting(gpu.info.uuid))
        except pynvml.NVMLError:
            return  # the GPU has no events, or its polling thread reports what failed

    def _report_xids(self, xids: XidWatch) -> None:
        while True:
            try:
                event = xids.wait(XID_WAIT_S)
            except pynvml.NVMLError:
                time.sleep(RETRY_S)
                continue
            if event:
                self._writer.put(XidError(*event))

    def _exit(self, error: SourceError | pynvml.NVMLError) -> None:
        unloaded = is_unloaded(error.__cause__ if isinstance(error, SourceError) else error)
        self._writer.put(DriverGone(str(error), unloaded=unloaded))
        self._writer.exit(EXIT_NO_DRIVER)


def _exit_on_bug(unhandled: threading.ExceptHookArgs) -> None:
    """End the process, which the daemon then replaces."""
    threading.__excepthook__(unhandled)
    os._exit(1)


def main(arguments: list[str]) -> None:
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the daemon handles Ctrl-C and closes this process's stdin
    threading.excepthook = _exit_on_bug
    nvml = Nvml()
    if arguments:
        from wattline_exporter.simulation.nvml import SimulatedNvml

        nvml = Nvml(SimulatedNvml(Path(arguments[0])))
    schedule = SamplingSchedule()
    writer = MessageWriter(schedule)
    sampler = NvmlSampler(nvml, schedule, writer)
    threading.Thread(
        target=writer.run, args=(sampler.threads.isolate_slow_gpus,), daemon=True
    ).start()
    threading.Thread(target=sampler.run, daemon=True).start()
    for content in read_frames(sys.stdin.buffer):
        schedule.follow(decode_order(content))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
