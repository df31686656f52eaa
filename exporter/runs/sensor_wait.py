"""Waiting for the sensors of a node around the begin and the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from exporter.live_state import Store
from exporter.model import Device
from exporter.runs.record import RunRecord

LONGEST_S = 0.5


class Senses:
    """`sense` asks all sensors for a reading at once and returns when RAPL's is in."""

    def __init__(self, store: Store, sense: Callable[[], Awaitable[None]], clock_s: Callable[[], float]) -> None:
        self._store = store
        self._sense = sense
        self._clock_s = clock_s
        self._sensing: set[asyncio.Future[None]] = set()

    async def feel(self) -> None:
        """Waits for the sensors, but not for one that hangs; what was asked goes on, since a thread cannot be ended."""
        sensing = asyncio.ensure_future(self._sense())
        self._sensing.add(sensing)
        sensing.add_done_callback(self._sensing.discard)
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                await asyncio.shield(sensing)

    async def settle(self, run: RunRecord, end_s: float) -> None:
        """Until each device was read long enough after `end_s` for its mark to be good, at most LONGEST_S."""
        lines = [self._store.lines[device] for device in run.measured() if self._answers(device)]
        latest_s = end_s + LONGEST_S
        while (now_s := self._clock_s()) < latest_s:
            if all(line.latest and line.latest.after_s >= min(end_s + line.settling_s(), latest_s) for line in lines):
                return
            await asyncio.sleep(min(0.02, latest_s - now_s))

    def _answers(self, device: Device) -> bool:
        gpu = self._store.gpus.get(device.id)
        return device in self._store.seen and (device.kind != "gpu" or (gpu is not None and gpu.up))
