"""Devices of torch jobs, and times measured on them."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wattline.client.messages import log_message_once, message_line

if TYPE_CHECKING:
    import torch


def require_modules(*modules: str) -> None:
    """End the process with a one-line message if a module is missing."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        from wattline.command_line import install

        cause = f"cannot run the job: {' and '.join(missing)} cannot be imported"
        sys.exit(message_line(f"{cause}; {install('torch')}"))


def torch_devices() -> list[torch.device]:
    """Return all GPUs of CUDA_VISIBLE_DEVICES, else the first GPU, else the CPU."""
    import torch

    if not torch.cuda.is_available():
        log_message_once("no CUDA device: the job runs on the CPU")
        return [torch.device("cpu")]
    count = torch.cuda.device_count() if "CUDA_VISIBLE_DEVICES" in os.environ else 1
    return [torch.device("cuda", index) for index in range(count)]


def time_on_device(device: torch.device, work: Callable[[], object]) -> float:
    """Run `work` and return its duration in seconds, by CUDA events on a GPU, else by the clock."""
    import torch

    if device.type != "cuda":
        begin_s = time.perf_counter()
        work()
        return time.perf_counter() - begin_s
    with torch.cuda.device(device):
        make_event: Any = torch.cuda.Event  # has no types
        begin, end = (make_event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1_000  # from milliseconds
