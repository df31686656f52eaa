"""What each GPU draws while nobody looks at it, and while it is polled as an idle exporter does: `exporter check`.

Its energy counter tells both: read before and after a silence in which NVML is closed, then around as long a time of
polls once a second. In a child process, since a driver call may hang:
`python -m exporter.cli.idle_power SECONDS INDEX,INDEX [STATE_FILE]` writes one JSON object a GPU, an `IdlePower`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pynvml

from exporter.contract.metrics import GPU_UTILIZATION
from exporter.model import Poll
from exporter.sources.nvml import Nvml, NvmlGpu

PERIOD_S = 1.0
UPDATE_S = 0.1
"""A counter is behind by up to one update, at the begin as at the end of what is measured."""
START_S = 10.0
LEAST_W = 1.0


@dataclass(frozen=True, slots=True)
class IdlePower:
    """`seconds` is how long each of the two took; a power is None where no counter tells it."""

    index: int
    seconds: float
    unwatched_w: float | None
    polled_w: float | None
    processes: int
    utilization: float


def measure(nvml: Nvml, indices: Sequence[int], seconds: float) -> list[IdlePower]:
    """Takes twice `seconds`. May hang; raises SourceError or NVMLError."""
    nvml.open()
    before = {index: nvml.gpu(index).poll() for index in indices}
    nvml.api.nvmlShutdown()
    time.sleep(seconds)
    nvml.open()
    gpus = {index: nvml.gpu(index) for index in indices}
    between = {index: gpu.poll() for index, gpu in gpus.items()}
    processes, busy = dict.fromkeys(indices, 0), dict.fromkeys(indices, 0.0)
    end_s = time.monotonic() + seconds
    while True:
        polls = {index: gpu.poll() for index, gpu in gpus.items()}
        if time.monotonic() >= end_s:
            break
        for index, gpu in gpus.items():
            processes[index] = max(processes[index], len(gpu.pids()))
            busy[index] = max(busy[index], _utilization(gpu))
        time.sleep(max(0.0, min(PERIOD_S, end_s - time.monotonic())))
    return [
        IdlePower(i, seconds, _mean_w(before[i], between[i]), _mean_w(between[i], polls[i]), processes[i], busy[i])
        for i in indices
    ]


def _utilization(gpu: NvmlGpu) -> float:
    """Reads what an idle exporter reads once a second."""
    return max((r.value for r in gpu.readings() if r.metric is GPU_UTILIZATION), default=0.0)


def _mean_w(first: Poll, last: Poll) -> float | None:
    if first.counter_j is None or last.counter_j is None or last.counter_j < first.counter_j:
        return None
    return (last.counter_j - first.counter_j) / (last.after_s - first.after_s)


async def texts(indices: Sequence[int], seconds: float, simulated: Path | None) -> list[str]:
    """A line for each GPU, of those that answer."""
    if not indices or seconds <= 0:
        return []
    given = [f"{seconds:g}", ",".join(map(str, indices)), *([str(simulated)] if simulated else [])]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "exporter.cli.idle_power", *given),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(2 * seconds + START_S):
            said, _ = await process.communicate()
    except TimeoutError:
        return ["not told: no answer in time; see what nvidia-smi says"]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        return ["not told: the driver failed meanwhile; see what nvidia-smi says"]
    return [text(IdlePower(**json.loads(line))) for line in said.splitlines()]


def text(found: IdlePower) -> str:
    """In words, with no more than the counter can tell."""
    gpu, unwatched_w, polled_w = f"GPU {found.index}", found.unwatched_w, found.polled_w
    if unwatched_w is None or polled_w is None:
        return f"{gpu}: not told; it has no energy counter, or that began anew (is persistence mode on? nvidia-smi -q)"
    half_w = UPDATE_S / found.seconds * max(unwatched_w, polled_w)
    drew = f"{unwatched_w:.1f} W unwatched, {polled_w:.1f} W polled once a second (± {half_w:.1f} W each)"
    if found.processes or found.utilization > 0:
        use = f"{found.processes} processes, utilization up to {100 * found.utilization:.0f} %"
        return f"{gpu} drew {drew}, but was in use ({use}): that is no idle power; try again when nothing runs"
    if polled_w - unwatched_w > max(2 * half_w, LEAST_W):
        return f"{gpu} draws {drew}: watching keeps it awake; is persistence mode on? try: nvidia-smi -pm 1"
    return f"{gpu} draws {drew}: watching does not keep it awake"


def main(arguments: Sequence[str]) -> None:
    api: Any = pynvml
    if len(arguments) > 2:
        from exporter.sources.simulated import SimulatedNvml

        api = SimulatedNvml(Path(arguments[2]))
    for found in measure(Nvml(api), [int(index) for index in arguments[1].split(",")], float(arguments[0])):
        print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
