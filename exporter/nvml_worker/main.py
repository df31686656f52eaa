"""The child process in which NVML lives, since a driver call can hang and cannot be cancelled.

It writes one JSON object a line to stdout and reads orders, likewise, from stdin; it ends when stdin does.
`python -m exporter.nvml_worker.main [STATE_FILE]`: with a file, the GPUs are the simulated ones of that file.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pynvml

from exporter.model import SourceError
from exporter.nvml_worker.polling_threads import Lanes, Visit
from exporter.nvml_worker.protocol import EXIT_NO_DRIVER, Orders, Outbox
from exporter.sources.nvml import Nvml, NvmlGpu, XidWatch, driver_is_gone, is_unloaded

RETRY_S = 5.0
LOOK_FOR_GPUS_S = 5.0
XID_WAIT_S = 10.0


class Sampler:
    """Everything here runs in a thread that may hang in the driver; only `main` must not."""

    def __init__(self, nvml: Nvml, orders: Orders, outbox: Outbox) -> None:
        self._nvml = nvml
        self._outbox = outbox
        self._xids: XidWatch | None = None
        self.lanes = Lanes(orders, outbox, lost=self._attach_in_a_thread)

    def run(self) -> None:
        """Starts NVML, attaches the GPUs, and looks whether others have come."""
        try:
            self._nvml.open()
            count = self._nvml.count()
        except (SourceError, pynvml.NVMLError) as error:
            self._leave(error)
            return
        self._outbox.put("count", count)
        bound = self._nvml.bound()
        self._xids = XidWatch(self._nvml.api)
        for index in range(count):
            self._attach_in_a_thread(Visit(index))
        threading.Thread(target=self._tell_xids, args=(self._xids,), daemon=True).start()
        # NVML lists the GPUs when it is initialized: where they are others now, a new process must look at them
        while self._count(count) == count and self._nvml.bound() == bound:
            time.sleep(LOOK_FOR_GPUS_S)
        self._outbox.put("gone", "the GPUs of this node have changed")
        self._outbox.leave(EXIT_NO_DRIVER)

    def _count(self, known: int) -> int:
        try:
            return self._nvml.count()
        except pynvml.NVMLError:
            return known  # the lanes find out what is wrong

    def _attach_in_a_thread(self, visit: Visit) -> None:
        threading.Thread(target=self._attach, args=(visit,), daemon=True).start()

    def _attach(self, visit: Visit) -> None:
        while True:
            try:
                gpu = self._nvml.gpu(visit.index)
            except pynvml.NVMLError as error:
                self._outbox.put("down", [visit.index, str(error)])
                if driver_is_gone(error):
                    self._leave(error)
                time.sleep(RETRY_S)
                continue
            self._outbox.put("gpu", asdict(gpu.info))
            visit.begin(gpu)
            self.lanes.add(visit)
            self._register(gpu)
            return

    def _register(self, gpu: NvmlGpu) -> None:
        try:
            if self._xids:
                self._xids.register(gpu.handle)
        except pynvml.NVMLError:
            return  # it has no events, or its lane finds out what is wrong

    def _tell_xids(self, xids: XidWatch) -> None:
        while True:
            try:
                event = xids.wait(XID_WAIT_S)
            except pynvml.NVMLError:
                time.sleep(RETRY_S)
                continue
            if event:
                self._outbox.put("xid", list(event))

    def _leave(self, error: SourceError | pynvml.NVMLError) -> None:
        if is_unloaded(error.__cause__ if isinstance(error, SourceError) else error):
            self._outbox.put("unloaded", True)
        self._outbox.put("gone", str(error))
        self._outbox.leave(EXIT_NO_DRIVER)


def _end(unhandled: threading.ExceptHookArgs) -> None:
    """A bug in one thread ends the process, which the parent then replaces."""
    threading.__excepthook__(unhandled)
    os._exit(1)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which closes our stdin
    threading.excepthook = _end
    nvml = Nvml()
    if arguments:
        from exporter.sources.simulated import SimulatedNvml

        nvml = Nvml(SimulatedNvml(Path(arguments[0])))
    orders = Orders()
    outbox = Outbox(orders)
    sampler = Sampler(nvml, orders, outbox)
    threading.Thread(target=outbox.send_for_ever, args=(sampler.lanes.relieve,), daemon=True).start()
    threading.Thread(target=sampler.run, daemon=True).start()
    for line in sys.stdin:
        orders.take(line)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
