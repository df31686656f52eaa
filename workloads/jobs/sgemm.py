"""Multiply square matrices of 32-bit floats: on CUDA's GPUs where there are, else on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from workloads import jobs
from workloads.jobs.kernels import gemm as matmul

_ELEMENT = matmul.Element("float32", 4)


def parser() -> jobs.Options:
    return matmul.parser("sgemm", __doc__)


def main(arguments: Sequence[str] | None = None) -> int:
    return matmul.main("sgemm", _ELEMENT, parser().parse_args(arguments))


if __name__ == "__main__":
    sys.exit(main())
