"""Jobs of a simulated node, their processes and their use of GPUs, in virtual time."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.simulation.discovery.verify import Attempt
from tests.simulation.gpus import SimulatedGpu
from tests.simulation.virtual_time import VirtualTime
from wattline.contract.identity import OwnerKind
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.processes.procfs import TICK_S, ProcessKey
from wattline_exporter.simulation import Constant

KINDS: tuple[OwnerKind, ...] = ("slurm", "slurm", "kubernetes", "container", "service", "user")
IDLE_W = 72.0
PIDS = range(100, 900)
"""A small range, so that pids are reused often."""
MAX_PROCESSES = 16
SAME_USER_S = 20.0
"""Shortest time between two attempts of a user: a run of a user ends 8 s after the last process on
a GPU.
"""


@dataclass
class ProcessTable:
    """Processes of the node. `on_exit` is called at each exit."""

    virtual: VirtualTime
    alive: dict[int, tuple[ProcessKey, CgroupOwner]] = field(default_factory=dict)
    groups: Counter[str] = field(default_factory=Counter)
    on_exit: Callable[[ProcessKey], None] = lambda _: None
    _ended_s: dict[int, float] = field(default_factory=dict)

    def start(self, owner: CgroupOwner) -> ProcessKey:
        now_s = self.virtual.s
        pid = self.virtual.rng.choice(PIDS)
        while pid in self.alive or now_s - self._ended_s.get(pid, 0.0) < 2 * TICK_S:
            pid = self.virtual.rng.choice(PIDS)
        key = ProcessKey(pid, int(now_s / TICK_S) * TICK_S)
        self.alive[pid] = key, owner
        self.groups[owner.path] += 1
        return key

    def end(self, process: ProcessKey) -> None:
        _, owner = self.alive.pop(process.pid)
        self._ended_s[process.pid] = self.virtual.s
        self.groups[owner.path] -= 1
        if not self.groups[owner.path]:
            del self.groups[owner.path]
        self.on_exit(process)

    def find(self, pid: int) -> tuple[ProcessKey, CgroupOwner] | None:
        return self.alive.get(pid)

    def is_alive(self, process: ProcessKey) -> bool:
        found = self.alive.get(process.pid)
        return found is not None and found[0] == process

    def pids_in(self, path: str) -> frozenset[int]:
        return frozenset(
            pid for pid, (_, owner) in self.alive.items() if path and owner.path == path
        )


class JobStream:
    """Jobs that start at random until `count` have started. `mean_s`: mean time between two
    starts.
    """

    def __init__(
        self,
        virtual: VirtualTime,
        gpus: list[SimulatedGpu],
        table: ProcessTable,
        count: int,
        *,
        mean_s: float,
        burst: int = 0,
        kinds: Sequence[OwnerKind] = KINDS,
    ) -> None:
        self.attempts: list[Attempt] = []
        self.table = table
        self.left = count
        self.running = 0
        self._virtual, self._rng, self._gpus, self._mean_s, self._burst = (
            virtual,
            virtual.rng,
            gpus,
            mean_s,
            burst,
        )
        self._watts: dict[tuple[SimulatedGpu, int], float] = {}
        self._used_s: dict[tuple[SimulatedGpu, int], float] = {}
        self._ended: list[tuple[float, CgroupOwner]] = []
        self._number = 1000
        self._kinds = kinds

    @property
    def is_over(self) -> bool:
        return not self.left and not self.running

    def start(self) -> None:
        self._virtual.after(5.0, self._next)

    def _next(self) -> None:
        for _ in range(
            min(self.left, self._burst if self._burst and self._rng.random() < 0.005 else 1)
        ):
            self._virtual.after(self._rng.random(), self._start_job)
            self.left -= 1
            self.running += 1
        if self.left:
            self._virtual.after(self._rng.expovariate(1 / self._mean_s), self._next)

    def _owner(self) -> CgroupOwner:
        rng = self._rng
        if (
            self._ended and rng.random() < 0.15
        ):  # a job is requeued, a service or a container restarted
            ended_s, owner = self._ended.pop(rng.randrange(len(self._ended)))
            if owner.kind != "user" or self._virtual.s - ended_s > SAME_USER_S:
                return owner
        self._number += 1
        kind = rng.choice(self._kinds)
        match kind:
            case "slurm":
                return CgroupOwner(kind, str(self._number), f"/slurm/job_{self._number}")
            case "kubernetes":
                identity = str(uuid.UUID(int=rng.getrandbits(128)))
                return CgroupOwner(kind, identity, f"/kubepods/pod{identity}")
            case "container":
                identity = f"{rng.getrandbits(256):064x}"
                return CgroupOwner(kind, identity, f"/docker/{identity}")
            case "service":
                return CgroupOwner(
                    kind, f"s{self._number}.service", f"/system.slice/s{self._number}.service"
                )
        return CgroupOwner("user", str(self._number), "")

    def _start_job(self) -> None:
        rng, virtual, owner = self._rng, self._virtual, self._owner()
        seconds = rng.choice(
            [rng.uniform(0.1, 3.0), *2 * [rng.uniform(3.0, 20.0)], 5.0 + rng.expovariate(1 / 60)]
        )
        free = [gpu for gpu in self._gpus if len(gpu.processes) < MAX_PROCESSES - 2] or self._gpus
        gpus = rng.sample(free, min(len(free), rng.choice([1, 1, 1, 2])))
        has_shell = owner.kind != "user" and rng.random() < 0.6
        shell = self.table.start(owner) if has_shell else None
        first = self.table.start(owner)
        attempt = Attempt((owner.kind, owner.id), first.started_s, gpus={gpu.uuid for gpu in gpus})
        self.attempts.append(attempt)
        use_s = virtual.s + rng.uniform(0.0, min(2.0, seconds / 4))
        end_s = virtual.s + seconds
        spans = [(use_s, end_s)]
        if (
            shell and seconds > 10.0 and rng.random() < 0.3
        ):  # two programs of a job, one after the other
            middle_s = (use_s + end_s) / 2
            spans = [(use_s, middle_s - rng.uniform(0.0, 3.0)), (middle_s, end_s)]
        on_end = [rng.uniform(0.0, 1.0), rng.uniform(0.0, 1.0)]

        def end() -> None:
            if shell:
                self.table.end(shell)
            attempt.end_s = virtual.s
            self.running -= 1
            self._ended.append((virtual.s, owner))

        def run_program(number: int, process: ProcessKey) -> None:
            self._use(attempt, gpus, process, *spans[number])
            virtual.at(spans[number][1], lambda: finish(number, process))

        def finish(number: int, process: ProcessKey) -> None:
            self._release(gpus, process)
            self.table.end(process)
            if number + 1 < len(spans):
                virtual.at(
                    spans[number + 1][0], lambda: run_program(number + 1, self.table.start(owner))
                )
            elif shell:
                virtual.after(on_end[0], end)
            else:
                end()

        run_program(0, first)

    def _use(
        self,
        attempt: Attempt,
        gpus: list[SimulatedGpu],
        process: ProcessKey,
        from_s: float,
        to_s: float,
    ) -> None:
        attempt.on_gpu.append((from_s, to_s))

        def use() -> None:
            for gpu in gpus:
                share = self._rng.uniform(0.02, 0.15)
                gpu.processes[process.pid] = share
                self._watts[gpu, process.pid] = share * 600.0
                self._set_load(gpu)

        self._virtual.at(from_s, use)

    def _release(self, gpus: list[SimulatedGpu], process: ProcessKey) -> None:
        for gpu in gpus:
            gpu.processes.pop(process.pid, None)
            self._watts.pop((gpu, process.pid), None)
            self._set_load(gpu)

    def _set_load(self, gpu: SimulatedGpu) -> None:
        watts = sum(w for (used, _), w in self._watts.items() if used is gpu)
        gpu.set_load(Constant(min(690.0, IDLE_W + watts)))
