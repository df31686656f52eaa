"""The processes on a card: their memory, and the share of time in which their kernels ran."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import pynvml

from exporter.model import GpuProcess
from exporter.sources.nvml.card import Card
from exporter.sources.nvml.errors import Ask

_KINDS = ("Compute", "Graphics", "MPSCompute")
_NOT_TOLD = (1 << 64) - 1
_SAMPLE_PERIOD_US = 1_000_000
"""The longest that a driver lets pass between two samples (nvmlUtilization_t)."""
_SILENT_US = 30_000_000


class Processes:
    """Of one card."""

    def __init__(self, card: Card, ask: Ask) -> None:
        self._card = card
        self._ask = ask
        self._seen_us = 0
        """The driver's clock at the last look."""
        self._ahead_us: int | None = None
        self._newest_us = self._heard_us = 0

    def of_card(self) -> list[GpuProcess]:
        """`utilization` is the mean since the last look (at first: over the last second); None where the card tells
        none of any process, 0 where it tells none of this one.
        """
        memory = self.memory(self._card.handle)
        shares = self._shares()
        return [GpuProcess(pid, used, None if shares is None else shares.get(pid, 0.0)) for pid, used in memory.items()]

    def of_instances(self, instances: Iterable[tuple[str, Any]]) -> list[GpuProcess]:
        """By UUID and handle. The driver tells no process's utilization on a MIG instance."""
        return [
            GpuProcess(pid, used, None, uuid) for uuid, handle in instances for pid, used in self.memory(handle).items()
        ]

    def memory(self, handle: Any) -> dict[int, int | None]:
        """By PID. Who computes and draws is in two lists, with the same memory in each."""
        found: dict[int, int | None] = {}
        for kind in _KINDS:
            call = getattr(self._card.api, f"nvmlDeviceGet{kind}RunningProcesses")
            for process in self._ask(("processes", kind), partial(call, handle)) or ():
                used = process.usedGpuMemory
                pid, before = int(process.pid), found.get(int(process.pid))
                found[pid] = before if used in {None, _NOT_TOLD} else max(int(used), before or 0)
        return dict(sorted(found.items()))

    def _shares(self) -> dict[int, float] | None:
        """By PID, of those that ran at all.

        The driver times its samples by a clock of its own: that is learned from the newest sample.
        """
        now_us = int(self._card.now() * 1e6)
        forgets = now_us - self._heard_us > _SILENT_US  # maybe its clock was set back
        samples = self._ask("process utilization", lambda: self._samples(0 if forgets else self._seen_us))
        if samples is None:
            return None
        newest_us = max((int(sample.timeStamp) for sample in samples), default=0)
        if newest_us in {0, self._newest_us}:
            samples = []  # none that is new: nothing ran
        else:
            if newest_us < self._newest_us:
                self._seen_us = 0
            self._newest_us, self._heard_us, self._ahead_us = newest_us, now_us, newest_us - now_us
        if self._ahead_us is None:
            return {}
        since_us, until_us = self._seen_us, now_us + self._ahead_us
        self._seen_us = until_us
        return mean_shares(samples, since_us or until_us - _SAMPLE_PERIOD_US, until_us)

    def _samples(self, since_us: int) -> list[Any]:
        try:
            return list(self._card.api.nvmlDeviceGetProcessUtilization(self._card.handle, since_us))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return []  # none that is newer: nothing ran
            raise


def mean_shares(samples: Iterable[Any], since_us: int, until_us: int) -> dict[int, float]:
    """Each sample stands for the time since the process's sample before it; there is none for a time without kernels
    after the last.
    """
    before_us: dict[int, int] = {}
    busy_us: dict[int, float] = {}
    for sample in sorted(samples, key=lambda sample: int(sample.timeStamp)):
        pid, at_us = int(sample.pid), int(sample.timeStamp)
        covered_us = max(0, at_us - before_us.get(pid, since_us))
        busy_us[pid] = busy_us.get(pid, 0.0) + covered_us * min(100, sample.smUtil) / 100
        before_us[pid] = at_us
    return {pid: busy / (until_us - since_us) for pid, busy in busy_us.items() if until_us > since_us}
