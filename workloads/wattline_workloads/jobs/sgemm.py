"""Multiply square matrices of 32-bit floats on the GPUs, or on the CPU if CUDA is not available."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from wattline_workloads.jobs.base import JobParser, job_parser, positive_int
from wattline_workloads.jobs.kernels import timed_kernels, torch_device
from wattline_workloads.jobs.kernels.timed_kernels import KernelLauncher

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class MatrixElement:
    """Number format; `share_of_peak` is its speed on a simulated GPU, relative to 32-bit floats."""

    name: Literal["float32", "float64"]
    size_bytes: int
    share_of_peak: float = 1.0


def gemm_parser(job: str, description: str | None) -> JobParser:
    options = job_parser(job, description)
    options.add_argument(
        "--size",
        type=positive_int,
        default=4096,
        metavar="N",
        help="number of rows and columns; default: 4096",
    )
    timed_kernels.add_kernel_options(options, "multiplications")
    return options


def run_gemm(job: str, element: MatrixElement, options: argparse.Namespace) -> int:
    flop = 2.0 * options.size**3  # one multiplication and one addition per term
    kernel = timed_kernels.TimedKernel(job, "kernel", "flop", flop)
    return timed_kernels.run_kernel_job(
        kernel, options, functools.partial(_devices, element, options.size)
    )


@contextlib.contextmanager
def _devices(
    element: MatrixElement, size: int, simulation: str | None
) -> Iterator[list[KernelLauncher]]:
    """Open the simulated GPUs, else CUDA's, else the CPU: those of CUDA_VISIBLE_DEVICES, else the
    first.
    """
    if simulation is not None:
        from wattline_workloads.runner.simulated_gpu import drive_simulated_gpus

        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        with drive_simulated_gpus(
            Path(simulation), visible, 3 * size**2 * element.size_bytes
        ) as gpus:
            flop = 2.0 * size**3 / element.share_of_peak
            yield [
                timed_kernels.simulated_launcher(gpu, flop / gpu.peak_flop_per_s) for gpu in gpus
            ]
    elif importlib.util.find_spec("torch") is not None:
        yield [_torch(device, element, size) for device in torch_device.torch_devices()]
    else:
        yield [_numpy(element, size)]


def _torch(device: torch.device, element: MatrixElement, size: int) -> KernelLauncher:
    import torch

    torch.set_float32_matmul_precision("highest")  # no TF32, which is faster
    random = torch.Generator(device).manual_seed(0)
    dtype = getattr(torch, element.name)
    a, b = (torch.rand(size, size, device=device, dtype=dtype, generator=random) for _ in range(2))
    product = torch.empty_like(a)
    return timed_kernels.torch_launcher(device, lambda: torch.matmul(a, b, out=product))


def _numpy(element: MatrixElement, size: int) -> KernelLauncher:
    import numpy as np

    random = np.random.default_rng(0)
    a, b = (random.random((size, size), dtype=element.name) for _ in range(2))
    product = np.empty_like(a)
    return timed_kernels.cpu_launcher(lambda: np.matmul(a, b, out=product))


_ELEMENT = MatrixElement("float32", 4)


def parser() -> JobParser:
    return gemm_parser("sgemm", __doc__)


def main(arguments: Sequence[str] | None = None) -> int:
    return run_gemm("sgemm", _ELEMENT, parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
