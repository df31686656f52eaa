"""Run, loop and process group of the transformer jobs."""

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

import wattline
from wattline.client.messages import message_line
from wattline_workloads.jobs.llm.models import ModelError
from wattline_workloads.runner.signals import KERNEL_UNWIND_LIMIT_S, unwind_on_signal

if TYPE_CHECKING:
    import torch

UNITS = {
    "llm-forward": "prompt_tokens",
    "llm-generate": "generated_tokens",
    "llm-train": "trained_tokens",
}
"""Primary unit of work of each job."""
_OTHERS_WITHIN = dt.timedelta(minutes=10)
_RELEASED_WITHIN_S = 1.0
_POLL_S = 0.0005


def run_job(
    name: str,
    options: argparse.Namespace,
    measure: Callable[[wattline.ActiveRun, argparse.Namespace], None],
) -> int:
    """Measure within a run; an error ends the process with a one-line message."""
    with unwind_on_signal(KERNEL_UNWIND_LIMIT_S), wattline.run(name, unit=UNITS[name]) as run:
        try:
            measure(run, options)
        except ModelError as error:
            sys.exit(message_line(f"{name}: {error}"))
        except (RuntimeError, MemoryError) as error:  # CUDA's errors are RuntimeErrors
            sys.exit(message_line(f"{name}: {_cause(error)}"))
    return 0


def measured_rounds(
    count: int | None,
    duration_s: float | None,
    any_process: Callable[[bool], bool] = bool,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[int]:
    """Yield `count` rounds, or as many as start within `duration_s`, at least one; all processes
    stop together.
    """
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


class World:
    """Process group of `size` processes, in which this one has number `rank`."""

    def __init__(self, device: torch.device | None, size: int, rank: int) -> None:
        self._device = device
        self.size = size
        self.rank = rank

    @classmethod
    def alone(cls) -> World:
        """Return the world of a single process on a simulated GPU."""
        return cls(None, 1, 0)

    def total(self, amount: float) -> float:
        return self._reduced(amount, "SUM")

    def longest(self, seconds: float) -> float:
        return self._reduced(seconds, "MAX")

    def any(self, condition: bool) -> bool:
        """Return True in all processes if the condition holds in any."""
        return self._reduced(float(condition), "MAX") > 0

    def barrier(self, run: wattline.ActiveRun) -> None:
        """Wait for the plan's other tenants, as one job. Raises BarrierError."""
        if self.rank == 0:
            run.barrier()
        self.total(0.0)

    def clock(self) -> float:
        """Synchronize the device and return the time in seconds."""
        if self._device is not None and self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def distributed(self, module: Any) -> Any:
        """Wrap the module so that gradients are averaged over all processes."""
        if self.size == 1:
            return module
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(module)

    def _reduced(self, value: float, operation: str) -> float:
        """Reduce the value over all processes, and wait until gloo has released the tensor.

        Its thread needs Python's lock for the release. With torch 2.13, destroying the process
        group meanwhile causes a deadlock: it waits for that thread while it holds the lock.
        """
        if self.size == 1:
            return value
        import torch
        from torch import distributed

        one = torch.tensor([value], device=self._device, dtype=torch.float64)
        distributed.all_reduce(one, getattr(distributed.ReduceOp, operation))
        reduced = float(one)
        kept = weakref.ref(one)
        del one
        give_up_s = time.monotonic() + _RELEASED_WITHIN_S
        while kept() is not None and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
        return reduced


@contextlib.contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Join the process group. Raises RuntimeError if the other processes do not join."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World(device, 1, 0)
        return
    import torch
    from torch import distributed

    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", timeout=_OTHERS_WITHIN
    )
    try:
        yield World(device, size, distributed.get_rank())
    finally:
        distributed.destroy_process_group()
