"""State file of simulated GPUs: reading and changing it from several processes.

A writer holds `flock` on the file and makes the sequence number odd while it writes. A reader that
finds it odd, or changed, reads again. So readers take no lock, and a killed writer leaves none
behind.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from wattline_exporter.simulation import gpu as arithmetic
from wattline_exporter.simulation import gpu as mig
from wattline_exporter.simulation import layout, sensors
from wattline_exporter.simulation.card import (
    Fault,
    Frozen,
    Segment,
    SimulatedGpuState,
    SimulatedProcess,
)
from wattline_exporter.simulation.layout import SimulationState
from wattline_exporter.simulation.loads import Constant, Load, Recording, Trace

ENVIRONMENT = "WATTLINE_SIMULATION"
FILE_NAME = "simulation.state"
_STUCK_S = 1.0


class StateFileError(Exception):
    """Error of a file that is not a usable state file; the text is the reason."""


def clock_s() -> float:
    """Return the time of simulations: seconds of CLOCK_BOOTTIME."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def create(
    path: Path, gpus: Sequence[SimulatedGpuState], now: float, recording: Recording | None = None
) -> None:
    """Create a state file in which all GPUs are idle and the driver was loaded at `now`."""
    idle = tuple(
        replace(
            gpu,
            segments=(Segment(now, 0.0, gpu.limit_w, now, Constant(gpu.product.idle_w)),),
            changes=1,
        )
        for gpu in gpus
    )
    state = SimulationState(
        driver_loaded=True, driver_loaded_at_s=now, call_latency_us=0, clock_s=0.0, gpus=idle
    )
    header = layout.pack_header(state, len(recording.times_s) if recording else 0, 0)
    trace = layout.pack_recording(recording) if recording else b""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(b"".join([header, *map(layout.pack_gpu, idle), trace]))
    temporary.replace(path)  # processes that have the old file open keep the old GPUs


class Simulation:
    """Open state file, which threads may share. `at` is the time of a change, now by default."""

    def __init__(self, path: Path, descriptor: int, mapped: mmap.mmap) -> None:
        self.path = path
        self._descriptor = descriptor
        self._map = mapped
        self._writing = threading.Lock()  # flock excludes other processes, not threads of this one
        gpus, self._points = layout.counts(mapped[: layout.gpu_offset(0)])
        self._end = layout.gpu_offset(gpus)
        self.recording = layout.unpack_recording(mapped[self._end :]) if self._points else None
        self._decoded: tuple[int, SimulationState] | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises StateFileError."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise StateFileError(f"cannot open the simulation {path}: {error.strerror}") from error
        size = os.fstat(descriptor).st_size
        problem = layout.format_problem(os.pread(descriptor, layout.gpu_offset(0), 0), size)
        if problem:
            os.close(descriptor)
            raise StateFileError(f"{path} is not a state file of simulated GPUs: {problem}")
        return cls(path, descriptor, mmap.mmap(descriptor, size))

    def close(self) -> None:
        self._map.close()
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> SimulationState:
        """Current state, decoded only when it has changed."""
        repair_s = time.monotonic() + _STUCK_S
        while True:
            before = self._sequence()
            decoded = self._decoded
            if decoded and decoded[0] == before:
                return decoded[1]
            content = self._map[: self._end]
            if before % 2 == 0 and self._sequence() == before:
                state = layout.unpack_state(content, self.recording)
                self._decoded = before, state
                return state
            if time.monotonic() > repair_s:
                self._edit(
                    lambda state: state
                )  # its writer was killed: an empty change makes the sequence number even
            time.sleep(0.0001)

    @property
    def gpus(self) -> tuple[SimulatedGpuState, ...]:
        return self.state.gpus

    def now(self) -> float:
        return self.state.clock_s or clock_s()

    def energy_j(self, i: int, t0: float, t1: float) -> float:
        """Return the true energy of [t0, t1]."""
        return arithmetic.energy_j(self.gpus[i], t0, t1)

    def power_w(self, i: int, t: float) -> float:
        """Return the true power."""
        return arithmetic.power_w(self.gpus[i], t)

    def instant_w(self, i: int, t: float) -> float:
        """Return the instantaneous power that the driver reports."""
        return sensors.instant_w(self.gpus[i], t)

    def average_w(self, i: int, t: float) -> float:
        return sensors.average_w(self.gpus[i], t)

    def counter_j(self, i: int, t: float) -> float:
        return sensors.counter_j(self.gpus[i], t)

    def set_load(self, i: int, load: Load, at: float | None = None) -> None:
        """Set the load. A Trace must be of `self.recording`. Raises ValueError where `at` is before
        the last change.
        """
        if isinstance(load, Trace) and (
            not self.recording or load.recording.watts != self.recording.watts
        ):
            raise ValueError(
                f"{self.path} has another recording, or none; pass the recording to create()"
            )
        self._change(i, lambda gpu, now: arithmetic.with_load(gpu, load, now), at)

    def set_limit(self, i: int, w: float, at: float | None = None) -> None:
        """Set the power limit. Raises ValueError outside of the GPU's range."""
        self._change(i, lambda gpu, now: arithmetic.with_limit(gpu, w, now), at)

    def lock_clock(self, i: int, mhz: int | None, at: float | None = None) -> None:
        """Lock the SM clock, or unlock it with None. Raises ValueError for an unsupported clock."""
        self._change(i, lambda gpu, now: arithmetic.with_locked_clock(gpu, mhz or 0, now), at)

    def drive(
        self, i: int, utilization: float, pid: int, memory_bytes: int = 0, at: float | None = None
    ) -> None:
        """Let process `pid` use this share (0-1) of the GPU, in addition to others, until
        `release`.
        """
        process = SimulatedProcess(pid, utilization, memory_bytes)
        self._change(i, lambda gpu, now: arithmetic.with_process(gpu, process, now), at)

    def drive_instance(
        self, i: int, instance: int, utilization: float, pid: int, memory_bytes: int = 0
    ) -> None:
        """Let process `pid` use a MIG instance, by number from 1; `utilization` is the share of the
        whole GPU.
        """
        process = SimulatedProcess(pid, utilization, memory_bytes, instance)
        self._change(i, lambda gpu, now: arithmetic.with_process(gpu, process, now), None)

    def release(self, i: int, pid: int, at: float | None = None) -> None:
        self._change(i, lambda gpu, now: arithmetic.without_process(gpu, pid, now), at)

    def set_fault(self, i: int, fault: Fault, on: bool) -> None:
        self._change(
            i,
            lambda gpu, _: replace(gpu, faults=gpu.faults | fault if on else gpu.faults & ~fault),
            None,
        )

    def freeze(self, i: int, at: float | None = None) -> None:
        """Keep the values of sensor and counter constant."""

        def frozen(gpu: SimulatedGpuState, now: float) -> SimulatedGpuState:
            values = (
                function(gpu, now)
                for function in (sensors.instant_w, sensors.average_w, sensors.counter_j)
            )
            return replace(gpu, frozen=Frozen(now, *values))

        self._change(i, frozen, at)

    def thaw(self, i: int) -> None:
        self._change(i, lambda gpu, _: replace(gpu, frozen=None), None)

    def jump_counter(self, i: int, joules: float) -> None:
        """Add energy to the counter that was never drawn."""
        self._change(
            i, lambda gpu, _: replace(gpu, energy_at_load_j=gpu.energy_at_load_j - joules), None
        )

    def add_ecc(self, i: int, corrected: int = 0, uncorrected: int = 0) -> None:
        def counted(gpu: SimulatedGpuState, _: float) -> SimulatedGpuState:
            errors = (gpu.ecc_corrected + corrected, gpu.ecc_uncorrected + uncorrected)
            return replace(gpu, ecc_corrected=errors[0], ecc_uncorrected=errors[1])

        self._change(i, counted, None)

    def raise_xid(self, i: int, xid: int) -> None:
        """Raise an XID event for registered processes; the last 16 of a GPU are kept."""
        self._change(i, lambda gpu, _: arithmetic.with_xid(gpu, xid), None)

    def set_mig(self, i: int, profiles: Sequence[str] | None) -> None:
        """Create one instance for each profile, like `3g.71gb`; None switches MIG off. Raises
        ValueError.
        """
        self._change(i, lambda gpu, _: mig.with_mig(gpu, profiles), None)

    def unload_driver(self) -> None:
        self._edit(lambda state: replace(state, driver_loaded=False))

    def load_driver(self, at: float | None = None) -> None:
        """Load the driver, whose counters restart from 0; the GPUs drew power meanwhile."""

        def loaded(state: SimulationState) -> SimulationState:
            now = _instant(state, at)
            gpus = tuple(arithmetic.with_counter_reset(gpu, now) for gpu in state.gpus)
            return replace(state, driver_loaded=True, driver_loaded_at_s=now, gpus=gpus)

        self._edit(loaded)

    def set_call_latency(self, seconds: float) -> None:
        """Set the duration of each driver call."""
        self._edit(lambda state: replace(state, call_latency_us=round(seconds * 1e6)))

    def set_clock(self, at: float | None) -> None:
        """Stop time at `at` for all readers of the file; None lets it run again."""
        self._edit(lambda state: replace(state, clock_s=at or 0.0))

    def _change(
        self,
        i: int,
        changed: Callable[[SimulatedGpuState, float], SimulatedGpuState],
        at: float | None,
    ) -> None:
        def edited(state: SimulationState) -> SimulationState:
            gpu = changed(state.gpus[i], _instant(state, at))
            return replace(state, gpus=(*state.gpus[:i], gpu, *state.gpus[i + 1 :]))

        self._edit(edited)

    def _edit(self, edited: Callable[[SimulationState], SimulationState]) -> None:
        with self._writing:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            try:
                old = layout.unpack_state(self._map[: self._end], self.recording)
                odd = self._sequence() | 1
                # Odd before `edited` reads the clock: a reader of a later time then includes this
                # change. Otherwise a reader could find that the energy counter fell.
                self._put(*layout.pack_sequence(odd))
                try:
                    self._put_changes(edited(old), old, odd)
                finally:
                    self._put(*layout.pack_sequence(odd + 1))
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _put_changes(self, new: SimulationState, old: SimulationState, sequence: int) -> None:
        self._put(0, layout.pack_header(new, self._points, sequence))
        for gpu, was in zip(new.gpus, old.gpus, strict=True):
            if gpu is not was:
                self._put(layout.gpu_offset(gpu.index), layout.pack_gpu(gpu))

    def _put(self, at: int, content: bytes) -> None:
        self._map[at : at + len(content)] = content

    def _sequence(self) -> int:
        return layout.sequence(self._map[: layout.gpu_offset(0)])


def _instant(state: SimulationState, at: float | None) -> float:
    return at if at is not None else state.clock_s or clock_s()
