"""Multiply square matrices of 32-bit floats: with torch on CUDA where there is one, else with NumPy on the CPU."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from workloads import client, jobs, shadow
from workloads.interruption import unwound_when_signalled

if TYPE_CHECKING:
    from workloads.simulated import SimulatedGpu

_BATCH_S = 0.1
_BYTES_PER_FLOAT = 4

Multiply = Callable[[int], None]
"""Do that many multiplications on one device, and return when they are done."""


def parser() -> jobs.Options:
    options = jobs.options("sgemm", __doc__)
    options.add_argument("--size", type=jobs.count, default=4096, metavar="N", help="rows and columns; default: 4096")
    until = options.add_mutually_exclusive_group()
    until.add_argument("--repetitions", type=jobs.count, metavar="R", help="multiplications on each device")
    until.add_argument("--duration", type=jobs.seconds, default=10.0, metavar="SECONDS", help="default: 10")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    shadow.exit_if_shadowed()
    flop = 2 * options.size**3
    with unwound_when_signalled(), client.run("sgemm") as run:
        try:
            with _devices(options.size, run.simulation) as devices:
                begin_s = time.monotonic()
                done = _multiply_on_all(devices, options, lambda batch: run.work(flop=batch * flop))
                run.result(flop_per_second=done * flop / (time.monotonic() - begin_s))
        except ValueError as error:
            sys.exit(f"sgemm: {error}")
        except (RuntimeError, MemoryError) as error:  # CUDA's errors are RuntimeErrors
            sys.exit(f"sgemm: {str(error).splitlines()[0]}; a smaller --size needs less memory")
    return 0


@contextlib.contextmanager
def _devices(size: int, simulation: str | None) -> Iterator[list[Multiply]]:
    """The simulated GPUs where they are, else CUDA's, else the CPU; those of CUDA_VISIBLE_DEVICES, else the first."""
    if simulation is not None:
        from workloads.simulated import driven  # noqa: PLC0415  # of the contract, so only once it is known to be ours

        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        with driven(Path(simulation), visible, 3 * size**2 * _BYTES_PER_FLOAT) as gpus:
            yield [functools.partial(_simulated, gpu, 2.0 * size**3) for gpu in gpus]
    else:
        yield _cuda(size) or [_cpu(size)]


def _simulated(gpu: SimulatedGpu, flop: float, times: int) -> None:
    gpu.compute(times * flop)


def _cuda(size: int) -> list[Multiply]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch  # noqa: PLC0415  # slow to import, and only where it is installed

    if not torch.cuda.is_available():
        return []

    def multiply_on(device: torch.device) -> Multiply:
        a, b = (torch.rand(size, size, device=device) for _ in range(2))
        product = torch.empty_like(a)

        def multiply(times: int) -> None:
            for _ in range(times):
                torch.matmul(a, b, out=product)
            torch.cuda.synchronize(device)

        return multiply

    count = torch.cuda.device_count() if "CUDA_VISIBLE_DEVICES" in os.environ else 1
    return [multiply_on(torch.device("cuda", index)) for index in range(count)]


def _cpu(size: int) -> Multiply:
    import numpy as np  # noqa: PLC0415  # not needed where there is a GPU

    random = np.random.default_rng(0)
    a, b = (random.random((size, size), dtype=np.float32) for _ in range(2))
    product = np.empty_like(a)

    def multiply(times: int) -> None:
        for _ in range(times):
            np.matmul(a, b, out=product)

    return multiply


def _multiply_on_all(devices: list[Multiply], options: argparse.Namespace, report: Callable[[int], None]) -> int:
    """The number of multiplications on all devices together; each goes at its own speed."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(devices)) as pool:
        try:
            return sum(pool.map(lambda multiply: _multiply(multiply, options, report, stop), devices))
        finally:
            stop.set()


def _multiply(
    multiply: Multiply, options: argparse.Namespace, report: Callable[[int], None], stop: threading.Event
) -> int:
    """In batches of about 0.1 s, so that a fast device is not held up by the counting."""
    done, batch = 0, 1
    end_s = time.monotonic() + options.duration
    while not stop.is_set() and (done < options.repetitions if options.repetitions else time.monotonic() < end_s):
        if options.repetitions:
            batch = min(batch, options.repetitions - done)
        begin_s = time.monotonic()
        multiply(batch)
        took_s = max(time.monotonic() - begin_s, 1e-6)
        done += batch
        report(batch)
        batch = max(1, int(batch * min(2.0, _BATCH_S / took_s)))
    return done


if __name__ == "__main__":
    sys.exit(main())
