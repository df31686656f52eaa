"""Who polls which GPU: a lane is a thread that polls several in turn; one that hangs is left to a lane of its own.

A thread a GPU would wake up 170 times a second for eight GPUs, a lane 21 times, and that is most of the cost.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

import pynvml

from exporter.model import Poll, boottime
from exporter.nvml_worker.protocol import EXIT_NO_DRIVER, Orders, Outbox
from exporter.sources.nvml import NvmlGpu, driver_is_gone, is_unloaded

READINGS_EVERY_S = 1.0
WITHOUT_COUNTER_S = 0.047
LATE_S = 0.1
"""A call that takes longer holds up the others of its lane."""
REJOIN_S = 60.0
"""A GPU that was late and has been prompt for so long shares a lane again."""
MOST_IN_A_LANE = 8
OFFSET_S = 0.0015
"""Between lanes, whose polls fall into the same few milliseconds but not on the same instant."""


class Visit:
    """One GPU, as its lane visits it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.polls_fast = False
        self._gpu: NvmlGpu | None = None
        self._sent: dict[tuple[str, tuple[str, ...]], float] = {}
        self._readings_s = self._processes_s = -math.inf

    def begin(self, gpu: NvmlGpu) -> None:
        """It is attached, maybe anew."""
        self._gpu = gpu
        self._sent = {}
        self._readings_s = self._processes_s = -math.inf

    def overdue_s(self, now: float, processes_every_s: float) -> float:
        """By how much its readings, or its processes, are late."""
        late_s = now - self._readings_s - READINGS_EVERY_S * 0.98
        return max(late_s, now - self._processes_s - processes_every_s * 0.98)

    def poll(self, outbox: Outbox) -> None:
        """Raises NVMLError, and may hang."""
        assert self._gpu
        poll = self._gpu.poll()
        self.polls_fast = poll.counter_j is None
        outbox.put("polls", encode(poll))

    def read(self, outbox: Outbox, processes_every_s: float) -> None:
        """What is asked less often, of which only what has changed is sent. Raises NVMLError, and may hang."""
        assert self._gpu
        now, uuid = boottime(), self._gpu.info.uuid
        if now >= self._readings_s + READINGS_EVERY_S * 0.98:
            self._readings_s = now
            found = {(r.metric.name, r.labels): r.value for r in self._gpu.readings()}
            changed = [[name, labels, v] for (name, labels), v in found.items() if self._sent.get((name, labels)) != v]
            gone = [list(series) for series in self._sent.keys() - found.keys()]
            self._sent = found
            if changed or gone:
                outbox.put("readings", [uuid, changed, gone])
        if now >= self._processes_s + processes_every_s * 0.98:
            self._processes_s = now
            outbox.put("processes", [uuid, [list(process) for process in self._gpu.processes()]])


class Lane:
    """A thread, and the GPUs that it visits. `busy_since_s` is set while it is in the driver."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.visits: list[Visit] = []
        self.busy_with: Visit | None = None
        self.busy_since_s = math.inf
        self.alone_since_s: float | None = None
        """Since when it has one GPU, left to it because a call took too long."""


class Lanes:
    """`lost` gets a GPU that failed and must be attached again."""

    def __init__(self, orders: Orders, outbox: Outbox, lost: Callable[[Visit], None]) -> None:
        self._orders = orders
        self._outbox = outbox
        self._lost = lost
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []
        self._numbers = itertools.count()

    def add(self, visit: Visit) -> None:
        with self._lock:
            self._place(visit)

    def _place(self, visit: Visit) -> None:
        """In the first lane with room, else in a new one. Called with the lock held."""
        for lane in self._lanes:
            if lane.alone_since_s is None and len(lane.visits) < MOST_IN_A_LANE:
                lane.visits.append(visit)
                return
        self._open([visit])

    def _open(self, visits: list[Visit]) -> None:
        lane = Lane(next(self._numbers))
        lane.visits = visits
        self._lanes.append(lane)
        threading.Thread(target=self._run, args=(lane,), daemon=True).start()

    def relieve(self) -> None:
        """Leaves GPUs whose driver call takes too long to the thread that is in it; the others get a new one."""
        now = boottime()
        with self._lock:
            for lane in list(self._lanes):
                stuck = lane.busy_with
                if stuck is None or now - lane.busy_since_s < LATE_S:
                    continue
                others = [visit for visit in lane.visits if visit is not stuck]
                lane.visits, lane.alone_since_s = [stuck], now
                if others:
                    self._open(others)

    def _run(self, lane: Lane) -> None:
        while True:
            with self._lock:
                self._rejoin(lane)
                visits = list(lane.visits)
                if not visits:
                    self._lanes.remove(lane)
                    return
            self._round(lane, visits)
            fast = any(visit.polls_fast for visit in visits)
            self._orders.wait(lane.number * OFFSET_S, at_most_s=WITHOUT_COUNTER_S if fast else None)

    def _rejoin(self, lane: Lane) -> None:
        if lane.alone_since_s is not None and boottime() - lane.alone_since_s > REJOIN_S:
            visits, lane.visits = lane.visits, []
            for visit in visits:
                self._place(visit)

    def _round(self, lane: Lane, visits: list[Visit]) -> None:
        """Polls each GPU; reads the rest of those that are due, at a fast rate of the most overdue one only."""
        for visit in visits:
            self._guarded(lane, visit, self._poll)
        now, every_s = boottime(), self._orders.processes_every_s
        late = [(visit.overdue_s(now, every_s), visit) for visit in visits]
        due = [visit for late_s, visit in sorted(late, key=lambda item: -item[0]) if late_s >= 0]
        for visit in due if self._orders.period_s >= READINGS_EVERY_S else due[:1]:
            self._guarded(lane, visit, self._read)

    def _poll(self, visit: Visit) -> None:
        visit.poll(self._outbox)

    def _read(self, visit: Visit) -> None:
        visit.read(self._outbox, self._orders.processes_every_s)

    def _guarded(self, lane: Lane, visit: Visit, look: Callable[[Visit], None]) -> None:
        """One look at a GPU that is this lane's, which ends it being so where the look fails."""
        with self._lock:
            if visit not in lane.visits:
                return
            lane.busy_with, lane.busy_since_s = visit, boottime()
        try:
            look(visit)
        except pynvml.NVMLError as error:
            self._outbox.put("down", [visit.index, str(error)])
            if driver_is_gone(error):
                if is_unloaded(error):
                    self._outbox.put("unloaded", True)
                self._outbox.put("gone", str(error))
                self._outbox.leave(EXIT_NO_DRIVER)
            with self._lock:
                lane.visits.remove(visit)
            self._lost(visit)
        finally:
            lane.busy_with = None


def encode(poll: Poll) -> list[Any]:
    return [poll.device.id, poll.before_s, poll.after_s, poll.counter_j, poll.power_w, poll.average_w]
