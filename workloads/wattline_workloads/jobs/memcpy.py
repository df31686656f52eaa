"""Copy memory between host and GPU or within a GPU; without CUDA, within host memory."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from wattline.client.messages import log_message
from wattline_workloads.jobs.base import JobParser, job_parser
from wattline_workloads.jobs.kernels import timed_kernels, torch_device
from wattline_workloads.jobs.kernels.timed_kernels import KernelLauncher

if TYPE_CHECKING:
    import torch

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class _Direction:
    """Source, target, and the speed and utilization on a simulated GPU."""

    source: str
    target: str
    simulated_bytes_per_s: float
    simulated_utilization: float


_DIRECTIONS = {
    "host-to-device": _Direction("cpu", "cuda", 25e9, 0.1),
    "device-to-host": _Direction("cuda", "cpu", 25e9, 0.1),
    "device-to-device": _Direction("cuda", "cuda", 1e12, 0.4),
}


def parser() -> JobParser:
    options = job_parser("memcpy", __doc__)
    options.add_argument(
        "--size",
        type=parse_size,
        default="1GiB",
        metavar="BYTES",
        help="size of a copy, like 500MB; default: 1GiB",
    )
    options.add_argument(
        "--direction",
        choices=_DIRECTIONS,
        default="host-to-device",
        help="direction of the copies, with pinned host memory; default: host-to-device",
    )
    timed_kernels.add_kernel_options(options, "copies")
    return options


def parse_size(text: str) -> int:
    """Parse `1GiB` to 1073741824, `1.5kB` to 1500, `8` to 8."""
    match = _SIZE.fullmatch(text.strip())
    size = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2]] if match else 0
    if not match or size < 1:
        raise argparse.ArgumentTypeError(
            f"{text} is not a size; give bytes, like 1GiB, 500MB or 4096"
        )
    return int(size)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    direction = _DIRECTIONS[options.direction]
    kernel = timed_kernels.TimedKernel("memcpy", "copy", "bytes", options.size)
    return timed_kernels.run_kernel_job(
        kernel, options, functools.partial(_devices, direction, options.size)
    )


@contextlib.contextmanager
def _devices(
    direction: _Direction, size: int, simulation: str | None
) -> Iterator[list[KernelLauncher]]:
    if simulation is not None:
        from wattline_workloads.runner.simulated_gpu import drive_simulated_gpus

        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        buffers = [direction.source, direction.target].count("cuda")
        with drive_simulated_gpus(
            Path(simulation), visible, buffers * size, direction.simulated_utilization
        ) as gpus:
            yield [
                timed_kernels.simulated_launcher(gpu, size / direction.simulated_bytes_per_s)
                for gpu in gpus
            ]
        return
    devices = torch_device.torch_devices() if importlib.util.find_spec("torch") is not None else []
    if any(device.type == "cuda" for device in devices):
        yield [_cuda(device, direction, size) for device in devices]
    else:
        log_message("no CUDA device: copying within host memory")
        yield [_memory(size)]


def _cuda(device: torch.device, direction: _Direction, size: int) -> KernelLauncher:
    import torch

    def buffer(memory: str) -> torch.Tensor:
        # random bytes, since zeros may be compressed and need less power
        if memory == "cpu":
            return torch.randint(256, (size,), dtype=torch.uint8, pin_memory=True)
        return torch.randint(256, (size,), dtype=torch.uint8, device=device)

    source = buffer(direction.source)
    target = buffer(direction.target)
    return timed_kernels.torch_launcher(device, lambda: target.copy_(source, non_blocking=True))


def _memory(size: int) -> KernelLauncher:
    import numpy as np

    source = np.random.default_rng(0).integers(256, size=size, dtype=np.uint8)
    target = np.zeros_like(source)
    return timed_kernels.cpu_launcher(lambda: np.copyto(target, source))


if __name__ == "__main__":
    sys.exit(main())
