"""Repeated, individually timed launches of a kernel on each device."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import wattline
from wattline.client.barrier import BarrierError
from wattline.client.messages import log_message, message_line
from wattline_workloads.jobs.base import percentile_results, positive_int, positive_seconds
from wattline_workloads.runner.signals import KERNEL_UNWIND_LIMIT_S, unwind_on_signal

if TYPE_CHECKING:
    import torch

    from wattline_workloads.runner.simulated_gpu import GpuLoad

_BATCH_S = 0.1  # long enough to hide the bookkeeping from a fast device
_IN_FLIGHT = 2  # batches: the device has the next one while one is counted
_TIMED_ALONE_S = 1e-3
"""Minimum duration of a timed group: CUDA events resolve 0.5 µs, and recording one takes 40 µs."""


class KernelTimes(NamedTuple):
    """Durations in seconds of consecutive groups of kernels, and the Unix time of their end."""

    seconds: Sequence[float]
    ended_at: float


KernelLauncher = Callable[[int, int], Callable[[], KernelTimes]]
"""`launch(groups, kernels)` starts groups of kernels; the returned function waits for their end."""


def cpu_launcher(kernel: Callable[[], object]) -> KernelLauncher:
    """Return a launcher for the CPU, where a kernel returns once it is done."""

    def launch(groups: int, kernels: int) -> Callable[[], KernelTimes]:
        seconds = array("d")
        for _ in range(groups):
            begin_s = time.perf_counter()
            for _ in range(kernels):
                kernel()
            seconds.append(time.perf_counter() - begin_s)
        timed = KernelTimes(seconds, time.time())
        return lambda: timed

    return launch


def torch_launcher(device: torch.device, kernel: Callable[[], object]) -> KernelLauncher:
    """Return a launcher that times kernels by CUDA events, without synchronization between
    kernels.
    """
    if device.type != "cuda":
        return cpu_launcher(kernel)
    import torch

    event: Any = torch.cuda.Event

    def launch(groups: int, kernels: int) -> Callable[[], KernelTimes]:
        with torch.cuda.device(device):
            # blocking: the waiting thread sleeps, since a spinning core would add energy
            marks = [event(enable_timing=True, blocking=True) for _ in range(groups + 1)]
            marks[0].record()
            for mark in marks[1:]:
                for _ in range(kernels):
                    kernel()
                mark.record()
        return functools.partial(_between, marks)

    return launch


def _between(marks: Sequence[torch.cuda.Event]) -> KernelTimes:
    marks[-1].synchronize()
    ended_at = time.time()
    return KernelTimes(
        [begin.elapsed_time(end) / 1_000 for begin, end in itertools.pairwise(marks)], ended_at
    )


def simulated_launcher(gpu: GpuLoad, full_speed_s: float) -> KernelLauncher:
    """Return a launcher of kernels with this duration at a simulated GPU's full speed."""

    def launch(groups: int, kernels: int) -> Callable[[], KernelTimes]:
        took_s, due_s = gpu.start(groups * kernels * full_speed_s)

        def wait() -> KernelTimes:
            time.sleep(max(0.0, due_s - time.monotonic()))
            return KernelTimes([took_s / groups] * groups, time.time() + (due_s - time.monotonic()))

        return wait

    return launch


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """Kernel of a job: `amount` of `unit` per launch; results are named `{noun}_seconds_…`."""

    job: str
    noun: str
    unit: str
    amount: float


def add_kernel_options(options: argparse.ArgumentParser, plural: str) -> None:
    until = options.add_mutually_exclusive_group()
    until.add_argument(
        "--repetitions", type=positive_int, metavar="R", help=f"number of {plural} on each device"
    )
    until.add_argument(
        "--duration",
        type=positive_seconds,
        default=10.0,
        metavar="SECONDS",
        help="duration of the measurement; default: 10",
    )
    options.add_argument(
        "--warmup",
        type=positive_int,
        default=2,
        metavar="R",
        help=f"warm-up {plural}, not measured; default: 2",
    )


def run_kernel_job(
    kernel: TimedKernel,
    options: argparse.Namespace,
    devices: Callable[[str | None], AbstractContextManager[list[KernelLauncher]]],
) -> int:
    """Run a kernel job; `devices` takes the path of the simulation's state file, or None, and may
    raise ValueError.
    """
    with unwind_on_signal(KERNEL_UNWIND_LIMIT_S), wattline.run(kernel.job, unit=kernel.unit) as run:
        try:
            run.phase("load")
            with devices(run.simulation) as launches:
                measured = measure_kernels(run, kernel, launches, options)
            run.phase("rest")
            run.result(**measured.results())  # simulated GPUs are idle meanwhile
        except (ValueError, BarrierError) as error:
            sys.exit(message_line(f"{kernel.job}: {error}"))
        except (RuntimeError, MemoryError) as error:  # CUDA's errors are RuntimeErrors
            cause = str(error).splitlines()[0]
            remedy = "a smaller --size needs less memory"
            sys.exit(message_line(f"{kernel.job}: {cause}; {remedy}"))
    return 0


def measure_kernels(
    run: wattline.ActiveRun,
    kernel: TimedKernel,
    launches: Sequence[KernelLauncher],
    options: argparse.Namespace,
) -> MeasuredKernels:
    """Run the kernels in the phases warmup and measure."""
    measured = [_Measured(run, kernel, gpu) for gpu in range(len(launches))]
    stop = threading.Event()
    with ThreadPoolExecutor(len(launches)) as pool:  # devices run independently
        try:
            run.phase("warmup")
            list(pool.map(lambda launch: launch(options.warmup, 1)(), launches))
            run.barrier()
            run.phase("measure")
            begin_s = time.monotonic()
            plan = functools.partial(_Plan, options.repetitions, options.duration)
            list(
                pool.map(lambda launch, one: _repeat(launch, one, plan(), stop), launches, measured)
            )
            wall_s = time.monotonic() - begin_s
        finally:
            stop.set()
    return MeasuredKernels(kernel, measured, wall_s)


@dataclass(frozen=True, slots=True)
class MeasuredKernels:
    """Kernels of all devices, which ran for `wall_s` together."""

    kernel: TimedKernel
    devices: list[_Measured]
    wall_s: float

    def results(self) -> dict[str, float]:
        """Return the results; the speed is the total of all devices by wall time."""
        kernel = self.kernel
        measured = self.devices
        _report_grouping(kernel, measured)
        count = sum(one.kernels for one in measured)
        total_s = math.fsum(one.total_s for one in measured)
        return {
            f"{kernel.unit}_per_second": count * kernel.amount / self.wall_s,
            f"{kernel.noun}_count": count,
            f"{kernel.noun}_seconds_sum": total_s,
            **percentile_results(
                f"{kernel.noun}_seconds", [each for one in measured for each in one.each_s]
            ),
            f"{kernel.noun}_seconds_mean": total_s / count,  # per kernel, not per group
        }


def _report_grouping(kernel: TimedKernel, measured: Sequence[_Measured]) -> None:
    most = max((one.most_together for one in measured), default=1)
    if most > 1:
        log_message(
            f"kernels are too short for individual timing: up to {most} were timed together, "
            f"see {kernel.noun}_count in events.jsonl"
        )


class _Measured:
    """Work and times of one device."""

    def __init__(self, run: wattline.ActiveRun, kernel: TimedKernel, gpu: int) -> None:
        self._run = run
        self._kernel = kernel
        self._gpu = gpu
        self.kernels = 0
        self.total_s = 0.0
        self.most_together = 1
        self.each_s = array("d")

    def add(self, kernels: int, timed: KernelTimes) -> None:
        """Record a batch with this number of kernels per group."""
        end_s = timed.ended_at - math.fsum(timed.seconds)
        for took_s in timed.seconds:
            end_s += took_s
            amounts = {self._kernel.unit: kernels * self._kernel.amount}
            values = {f"{self._kernel.noun}_count": kernels, "gpu": self._gpu}
            self._run.iteration(took_s, values, ended_at=end_s, **amounts)
            self.each_s.append(took_s / kernels)
            self.total_s += took_s
        self.kernels += kernels * len(timed.seconds)
        self.most_together = max(self.most_together, kernels)


class _Plan:
    """Sizes of one device's batches, until the repetitions or the duration are reached."""

    def __init__(self, repetitions: int | None, duration_s: float) -> None:
        self._left = repetitions
        self._duration_s = duration_s
        self._end_s = math.inf
        self._together = 1
        self._groups = 1

    def next(self) -> tuple[int, int] | None:
        now_s = time.monotonic()
        if self._left is None:
            if now_s >= self._end_s:
                return None
            self._end_s = min(
                self._end_s, now_s + self._duration_s
            )  # counted from the first batch, so at least one runs
            return self._groups, self._together
        together = min(self._together, self._left)
        if together == 0:
            return None
        groups = min(self._groups, self._left // together)
        self._left -= groups * together
        return groups, together

    def learn(self, kernels: int, timed: KernelTimes) -> None:
        """Adapt the batch size to the measured times; the next batch has at most twice as many
        kernels.
        """
        done = kernels * len(timed.seconds)
        alone_s = max(math.fsum(timed.seconds) / done, 1e-9)
        self._together = max(self._together, math.ceil(_TIMED_ALONE_S / alone_s))
        self._groups = max(1, int(min(2 * done, _BATCH_S / alone_s) / self._together))


def _repeat(
    launch: KernelLauncher, measured: _Measured, plan: _Plan, stop: threading.Event
) -> None:
    """Run batches until the plan ends or another device fails."""
    in_flight: deque[tuple[int, Callable[[], KernelTimes]]] = deque()
    try:
        while not stop.is_set():
            more = plan.next()
            if more is not None:
                in_flight.append((more[1], launch(*more)))
                if len(in_flight) < _IN_FLIGHT:
                    continue
            if not in_flight:
                return
            kernels, wait = in_flight.popleft()
            timed = wait()
            plan.learn(kernels, timed)
            measured.add(kernels, timed)
    except Exception:
        stop.set()
        raise
