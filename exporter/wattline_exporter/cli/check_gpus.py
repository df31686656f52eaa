"""GPUs of `exporter check`: one line per GPU, from the worker process that the daemon uses."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from wattline.command_line import module_command
from wattline_exporter.cli import idle_power
from wattline_exporter.cli.sources import simulated_file, worker_arguments
from wattline_exporter.config.settings import Settings
from wattline_exporter.sensors.nvml.messages import receive_items
from wattline_exporter.sensors.nvml.supervisor import cannot_run
from wattline_exporter.sensors.readings import (
    DriverGone,
    GpuCount,
    GpuFailure,
    GpuInfo,
    Poll,
    WorkerItem,
)
from wattline_exporter.sensors.registry import CheckLine

NVML_TIMEOUT_S = 5.0

_Item = TypeVar("_Item", bound=WorkerItem)


async def gpu_lines(settings: Settings, idle_s: float) -> list[CheckLine]:
    """Check NVML in the same worker process that the daemon uses, so that a hanging driver does no
    harm.
    """
    with TemporaryDirectory() as folder:  # a separate simulation: the daemon's may be in use
        created = simulated_file(replace(settings, state_path=Path(folder)))
        simulated = created.path if created else None
        items, in_time = await _worker_items(worker_arguments(simulated))
        answered = _polled_uuids(items)
        indices = [int(gpu.index) for gpu in _of(GpuInfo, items) if gpu.uuid in answered]
        idle = await idle_power.measure_lines(indices, idle_s, simulated)
        lines = _nvml_lines(items)
        if not in_time:
            lines.append(CheckLine("nvml    GPU ? fails: no response in time; see: nvidia-smi"))
        return [*lines, *(CheckLine(f"idle    {text}") for text in idle)]


async def _worker_items(arguments: list[str]) -> tuple[list[WorkerItem], bool]:
    """Run the worker until each GPU has answered or failed. Return its items, and whether that was
    in time.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *module_command(*arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return [DriverGone(cannot_run(sys.executable, error))], True
    assert process.stdout
    items: list[WorkerItem] = []
    try:
        async with asyncio.timeout(NVML_TIMEOUT_S):
            while (received := await receive_items(process.stdout)) is not None:
                items += received
                counts = _of(GpuCount, items)
                expected = counts[0].count if counts else 1
                if len(_polled_uuids(items)) + len(_failures(items)) >= expected:
                    break
    except TimeoutError:
        return items, False
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return items, True


def _of(kind: type[_Item], items: Sequence[WorkerItem]) -> list[_Item]:
    return [item for item in items if isinstance(item, kind)]


def _polled_uuids(items: Sequence[WorkerItem]) -> set[str]:
    return {poll.device.id for poll in _of(Poll, items)}


def _failures(items: Sequence[WorkerItem]) -> list[GpuFailure]:
    """Return the last failure of each GPU that fails: attaching a GPU is tried repeatedly."""
    polled = _polled_uuids(items)
    answered = {int(gpu.index) for gpu in _of(GpuInfo, items) if gpu.uuid in polled}
    last = {failure.index: failure for failure in _of(GpuFailure, items)}
    return [failure for index, failure in last.items() if index not in answered]


def _nvml_lines(items: Sequence[WorkerItem]) -> list[CheckLine]:
    polls = {poll.device.id: poll for poll in _of(Poll, items)}
    lines = []
    for gpu in _of(GpuInfo, items):
        poll = polls.get(gpu.uuid)
        if poll:
            method = (
                "energy counter"
                if poll.counter_j is not None
                else "no energy counter, power is integrated"
            )
            lines.append(
                CheckLine(
                    f"nvml    works: GPU {gpu.index}, {gpu.name}, {gpu.uuid}, {method}",
                    measures=True,
                )
            )
    lines += [
        CheckLine(f"nvml    GPU {failure.index} fails: {failure.reason}")
        for failure in _failures(items)
    ]
    lines += [CheckLine(f"nvml    off: {gone.reason}") for gone in _of(DriverGone, items)]
    if _of(GpuCount, items) == [GpuCount(0)]:
        lines.append(CheckLine("nvml    off: the driver reports no GPU; see: nvidia-smi -L"))
    return lines
