"""Device and score file shared by the benchmarks."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def device() -> torch.device:
    """Return the GPU of this rank, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def write_score(folder: str, time_s: float, **numbers: float) -> None:
    """Write the score file: `time` becomes the result `score_seconds`, each number a result."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    lines = [f"{name}: {number}\n" for name, number in {"time": time_s, **numbers}.items()]
    (Path(folder) / "metrics.yml").write_text("".join(lines))
