"""Multiply square matrices of 32-bit floats on the GPUs, or on the CPU if CUDA is not available."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from workloads.jobs.base import JobParser
from workloads.jobs.kernels import gemm

_ELEMENT = gemm.MatrixElement("float32", 4)


def parser() -> JobParser:
    return gemm.gemm_parser("sgemm", __doc__)


def main(arguments: Sequence[str] | None = None) -> int:
    return gemm.run_gemm("sgemm", _ELEMENT, parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
