"""Load on the GPU of CUDA_VISIBLE_DEVICES until it is stopped: `python -m tests.gpu.load DUTY`,
with torch on CUDA.

A duty of 1 is continuous; less gives bursts with the period of the benchmark. It prints `ready`
once the GPU is busy.
"""

from __future__ import annotations

import sys
import time

SIZE = 8192
PERIOD_S = 1.73


def main() -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device")
    duty = float(sys.argv[1])
    a, b = (torch.rand(SIZE, SIZE, device="cuda", dtype=torch.float16) for _ in range(2))
    product = torch.empty_like(a)
    torch.matmul(a, b, out=product)
    torch.cuda.synchronize()
    print("ready", flush=True)
    while True:
        end_s = time.monotonic() + duty * PERIOD_S
        while time.monotonic() < end_s:
            for _ in range(4):
                torch.matmul(a, b, out=product)
            torch.cuda.synchronize()
        time.sleep((1 - duty) * PERIOD_S)


if __name__ == "__main__":
    main()
