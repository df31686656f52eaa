"""Idle power of each GPU without and with polling, for `exporter check`.

The energy counter is read before and after a pause in which NVML is closed, then around the same
time of polling once a second. It runs in a child process, since a driver call may hang: `python -m
wattline_exporter.cli.idle_power SECONDS INDEX,INDEX [STATE_FILE]` writes one JSON object per GPU,
an `IdlePower`.
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

from wattline.command_line import module_command
from wattline.contract.metrics import GPU_UTILIZATION
from wattline_exporter.sensors.nvml.driver import Nvml
from wattline_exporter.sensors.nvml.gpu import NvmlGpu
from wattline_exporter.sensors.readings import Poll

PERIOD_S = 1.0
UPDATE_S = 0.1
"""Largest delay of a counter's value, at the start and at the end of the measurement."""
START_S = 10.0
MIN_DIFFERENCE_W = 1.0


@dataclass(frozen=True, slots=True)
class IdlePower:
    """Result for one GPU; `seconds` is the duration of each part, powers are None without a
    counter.
    """

    index: int
    seconds: float
    unpolled_w: float | None
    polled_w: float | None
    processes: int
    utilization: float


def measure_idle_power(nvml: Nvml, indices: Sequence[int], seconds: float) -> list[IdlePower]:
    """Measure for twice `seconds`. May hang; raises SourceError or NVMLError."""
    nvml.open()
    before = {index: nvml.gpu(index).poll() for index in indices}
    nvml.api.nvmlShutdown()
    time.sleep(seconds)
    nvml.open()
    gpus = {index: nvml.gpu(index) for index in indices}
    between = {index: gpu.poll() for index, gpu in gpus.items()}
    processes = dict.fromkeys(indices, 0)
    busy = dict.fromkeys(indices, 0.0)
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
        IdlePower(
            i,
            seconds,
            _mean_w(before[i], between[i]),
            _mean_w(between[i], polls[i]),
            processes[i],
            busy[i],
        )
        for i in indices
    ]


def _utilization(gpu: NvmlGpu) -> float:
    """Return the utilization after reading the same values as an idle exporter."""
    return max((r.value for r in gpu.readings() if r.metric is GPU_UTILIZATION), default=0.0)


def _mean_w(first: Poll, last: Poll) -> float | None:
    if first.counter_j is None or last.counter_j is None or last.counter_j < first.counter_j:
        return None
    return (last.counter_j - first.counter_j) / (last.after_s - first.after_s)


async def measure_lines(
    indices: Sequence[int], seconds: float, simulated: Path | None
) -> list[str]:
    """Return one line per responding GPU."""
    if not indices or seconds <= 0:
        return []
    arguments = [
        f"{seconds:g}",
        ",".join(map(str, indices)),
        *([str(simulated)] if simulated else []),
    ]
    process = await asyncio.create_subprocess_exec(
        *module_command("wattline_exporter.cli.idle_power", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(2 * seconds + START_S):
            output, _ = await process.communicate()
    except TimeoutError:
        return ["unknown: no response in time; see: nvidia-smi"]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        return ["unknown: the driver failed; see: nvidia-smi"]
    return [describe_idle_power(IdlePower(**json.loads(line))) for line in output.splitlines()]


def describe_idle_power(power: IdlePower) -> str:
    """Return the result in words, with the uncertainty of the counter's update interval."""
    gpu = f"GPU {power.index}"
    unpolled_w = power.unpolled_w
    polled_w = power.polled_w
    if unpolled_w is None or polled_w is None:
        return (
            f"{gpu}: unknown, no energy counter, or it was reset; check persistence mode with: "
            "nvidia-smi -q"
        )
    half_w = UPDATE_S / power.seconds * max(unpolled_w, polled_w)
    drew = (
        f"{unpolled_w:.1f} W without polling, {polled_w:.1f} W polled once a second (± "
        f"{half_w:.1f} W each)"
    )
    if power.processes or power.utilization > 0:
        use = f"{power.processes} processes, utilization up to {100 * power.utilization:.0f} %"
        return (
            f"{gpu} drew {drew} while in use ({use}); not idle power, repeat it when no "
            "process runs"
        )
    if polled_w - unpolled_w > max(2 * half_w, MIN_DIFFERENCE_W):
        return (
            f"{gpu} draws {drew}; polling keeps it awake: enable persistence mode with "
            "nvidia-smi -pm 1"
        )
    return f"{gpu} draws {drew}; polling does not keep it awake"


def main(arguments: Sequence[str]) -> None:
    api: Any = pynvml
    if len(arguments) > 2:
        from wattline_exporter.simulation.nvml import SimulatedNvml

        api = SimulatedNvml(Path(arguments[2]))
    for power in measure_idle_power(
        Nvml(api), [int(index) for index in arguments[1].split(",")], float(arguments[0])
    ):
        print(json.dumps(asdict(power)))


if __name__ == "__main__":
    main(sys.argv[1:])
