"""What the jobs with a transformer do alike: begin the run, load, measure for so long, and end in one line."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from workloads import client
from workloads.jobs.llm.models import ModelError
from workloads.runner import shadow_check as shadow
from workloads.runner.signals import KERNEL_UNWIND_LIMIT_S, unwind_on_signal

if TYPE_CHECKING:
    import torch


def run_job(name: str, options: argparse.Namespace, measure: Callable[[client.Run, argparse.Namespace], None]) -> int:
    """Whatever is wrong ends the process with one line."""
    shadow.exit_if_shadowed()
    with unwind_on_signal(KERNEL_UNWIND_LIMIT_S), client.run(name) as run:
        try:
            measure(run, options)
        except ModelError as error:
            sys.exit(f"{name}: {error}")
        except (RuntimeError, MemoryError) as error:  # CUDA's errors are RuntimeErrors
            sys.exit(f"{name}: {_cause(error)}")
    return 0


def measured_rounds(
    count: int | None,
    duration_s: float | None,
    any_process: Callable[[bool], bool] = bool,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[int]:
    """`count` of them, or as many as begin within `duration_s`, at least one. All processes stop at the same one."""
    end_s = now() + (duration_s or 0.0)
    for index in itertools.count():
        if duration_s is None:
            is_over = count is not None and index >= count
        else:
            is_over = index > 0 and any_process(now() >= end_s)
        if is_over:
            return
        yield index


def _cause(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, MemoryError) or "memory" in text.lower():
        return f"{text}; a smaller --batch-size, shorter texts or --dtype bfloat16 need less memory"
    return text


_OTHERS_WITHIN = dt.timedelta(minutes=10)
_RELEASED_WITHIN_S = 1.0
_POLL_S = 0.0005


class World:
    """`size` processes of which this one is number `rank`; made by `joined`."""

    def __init__(self, device: torch.device | None, size: int, rank: int) -> None:
        self._device = device
        self.size = size
        self.rank = rank

    @classmethod
    def alone(cls) -> World:
        """Of a process whose device is a simulated one."""
        return cls(None, 1, 0)

    def total(self, amount: float) -> float:
        return self._reduced(amount, "SUM")

    def longest(self, seconds: float) -> float:
        return self._reduced(seconds, "MAX")

    def any(self, condition: bool) -> bool:
        """The same answer for all, so that none goes on alone."""
        return self._reduced(float(condition), "MAX") > 0

    def barrier(self, run: client.Run) -> None:
        """For the plan's other tenants, the world is one. Raises BarrierError."""
        if self.rank == 0:
            run.barrier()
        self.total(0.0)

    def clock(self) -> float:
        """Seconds, once the device has done all that it was told to do."""
        if self._device is not None and self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def distributed(self, module: Any) -> Any:
        """Gradients are averaged over the world."""
        if self.size == 1:
            return module
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(module)

    def _reduced(self, value: float, operation: str) -> float:
        """Returns once gloo has let go of the tensor: its thread takes Python's lock for that, and a process group that
        is destroyed meanwhile waits for that thread while it holds the lock itself, for ever (seen with torch 2.13).
        """
        if self.size == 1:
            return value
        import torch
        from torch import distributed

        one = torch.tensor([value], device=self._device, dtype=torch.float64)
        distributed.all_reduce(one, getattr(distributed.ReduceOp, operation))
        reduced, kept = float(one), weakref.ref(one)
        del one
        give_up_s = time.monotonic() + _RELEASED_WITHIN_S
        while kept() is not None and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        return reduced


@contextlib.contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Raises RuntimeError where the others do not come."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device, 1, 0)
        return
    import torch
    from torch import distributed

    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_OTHERS_WITHIN)
    try:
        yield World(device, size, distributed.get_rank())
    finally:
        distributed.destroy_process_group()
