"""Kernels on a device, started and timed in groups: by CUDA's events, by the clock, or by the simulated GPU's model."""

from __future__ import annotations

import functools
import itertools
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

    from workloads.jobs.simulated.gpu import SimulatedGpu


class Timed(NamedTuple):
    """Seconds of each group of kernels, one after the other, and the Unix time at which the last one ended."""

    seconds: Sequence[float]
    ended_at: float


Launch = Callable[[int, int], Callable[[], Timed]]
"""`launch(groups, kernels)` starts so many groups of so many kernels; calling what it returns waits for their end."""


def on_clock(kernel: Callable[[], object]) -> Launch:
    """On the CPU; a kernel returns once it is done."""

    def launch(groups: int, kernels: int) -> Callable[[], Timed]:
        seconds = array("d")
        for _ in range(groups):
            begin_s = time.perf_counter()
            for _ in range(kernels):
                kernel()
            seconds.append(time.perf_counter() - begin_s)
        timed = Timed(seconds, time.time())
        return lambda: timed

    return launch


def on_torch(device: torch.device, kernel: Callable[[], object]) -> Launch:
    """Between CUDA's events, in the order of the device's stream: it never waits for us between two kernels."""
    if device.type != "cuda":
        return on_clock(kernel)
    import torch

    event: Any = torch.cuda.Event

    def launch(groups: int, kernels: int) -> Callable[[], Timed]:
        with torch.cuda.device(device):
            # blocking: whoever waits sleeps, as a core that spins would be measured too
            marks = [event(enable_timing=True, blocking=True) for _ in range(groups + 1)]
            marks[0].record()
            for mark in marks[1:]:
                for _ in range(kernels):
                    kernel()
                mark.record()
        return functools.partial(_between, marks)

    return launch


def _between(marks: Sequence[torch.cuda.Event]) -> Timed:
    marks[-1].synchronize()
    ended_at = time.time()
    return Timed([begin.elapsed_time(end) / 1_000 for begin, end in itertools.pairwise(marks)], ended_at)


def on_simulated(gpu: SimulatedGpu, full_speed_s: float) -> Launch:
    """A kernel that takes so long at the simulated GPU's full speed; its time is the model's."""

    def launch(groups: int, kernels: int) -> Callable[[], Timed]:
        took_s, due_s = gpu.start(groups * kernels * full_speed_s)

        def wait() -> Timed:
            time.sleep(max(0.0, due_s - time.monotonic()))
            return Timed([took_s / groups] * groups, time.time() + (due_s - time.monotonic()))

        return wait

    return launch
