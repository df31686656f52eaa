"""GPUs of `exporter check`: one line per GPU, from the worker process that the daemon uses."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from wattline.command_line import module_command
from wattline_exporter.cli import idle_power
from wattline_exporter.cli.sources import simulated_file, worker_arguments
from wattline_exporter.config.settings import Settings
from wattline_exporter.sensors.nvml.supervisor import cannot_run
from wattline_exporter.sensors.nvml.wire import decode_message
from wattline_exporter.sensors.readings import DriverGone, GpuCount, GpuFailure, WorkerMessage

NVML_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of output. `measures` is True for a source of energy, `fails` where the exporter
    cannot start.
    """

    text: str
    measures: bool = False
    fails: bool = False


async def gpu_lines(settings: Settings, idle_s: float) -> list[CheckLine]:
    """Check NVML in the same worker process that the daemon uses, so that a hanging driver does no
    harm.
    """
    with TemporaryDirectory() as folder:  # a separate simulation: the daemon's may be in use
        created = simulated_file(replace(settings, state_path=Path(folder)))
        simulated = created.path if created else None
        message, in_time = await _worker_message(worker_arguments(simulated))
        answered = _polled_uuids(message)
        indices = [int(gpu.index) for gpu in message.gpus if gpu.uuid in answered]
        idle = await idle_power.measure_lines(indices, idle_s, simulated)
        lines = _nvml_lines(message)
        if not in_time:
            lines.append(CheckLine("nvml    GPU ? fails: no response in time; see: nvidia-smi"))
        return [*lines, *(CheckLine(f"idle    {text}") for text in idle)]


async def _worker_message(arguments: list[str]) -> tuple[WorkerMessage, bool]:
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
        return WorkerMessage(driver_gone=(DriverGone(cannot_run(sys.executable, error)),)), True
    assert process.stdout
    message = WorkerMessage()
    try:
        async with asyncio.timeout(NVML_TIMEOUT_S):
            async for line in process.stdout:
                message = message.extended(decode_message(line))
                expected = message.gpu_counts[0].count if message.gpu_counts else 1
                if len(_polled_uuids(message)) + len(_failures(message)) >= expected:
                    break
    except TimeoutError:
        return message, False
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return message, True


def _polled_uuids(message: WorkerMessage) -> set[str]:
    return {poll.device.id for poll in message.polls}


def _failures(message: WorkerMessage) -> list[GpuFailure]:
    """Return the last failure of each GPU that fails: attaching a GPU is tried repeatedly."""
    polled = _polled_uuids(message)
    answered = {int(gpu.index) for gpu in message.gpus if gpu.uuid in polled}
    return list(
        {
            failure.index: failure
            for failure in message.gpu_failures
            if failure.index not in answered
        }.values()
    )


def _nvml_lines(message: WorkerMessage) -> list[CheckLine]:
    polls = {poll.device.id: poll for poll in message.polls}
    lines = []
    for gpu in message.gpus:
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
        for failure in _failures(message)
    ]
    lines += [CheckLine(f"nvml    off: {gone.reason}") for gone in message.driver_gone]
    if message.gpu_counts == (GpuCount(0),):
        lines.append(CheckLine("nvml    off: the driver reports no GPU; see: nvidia-smi -L"))
    return lines
