"""Multiply square matrices of 64-bit floats on the GPUs, or on the CPU if CUDA is not available."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from wattline_workloads.jobs import sgemm
from wattline_workloads.jobs.base import JobParser

_ELEMENT = sgemm.MatrixElement("float64", 8, 0.5)


def parser() -> JobParser:
    return sgemm.gemm_parser("dgemm", __doc__)


def main(arguments: Sequence[str] | None = None) -> int:
    return sgemm.run_gemm("dgemm", _ELEMENT, parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
