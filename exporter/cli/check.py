"""`exporter check`: each source read once, in a line that says what works, or why not and what to type."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import aiohttp

from exporter.cli import idle_power
from exporter.cli.check_web import web_state
from exporter.contract.history import STATE_FILE
from exporter.model import Source, SourceError
from exporter.nvml_worker.protocol import DriverGone, GpuCount, WorkerMessage, decode_message
from exporter.nvml_worker.supervisor import cannot_run
from exporter.settings import Settings
from exporter.sources.carbon.config import carbon_feeds, carbon_providers
from exporter.sources.carbon.feed import CarbonFeed
from exporter.sources.cpu_energy.choose import CpuSource
from exporter.sources.host import HostSource
from exporter.sources.hwmon import HwmonSource
from exporter.sources.processes.table import DENIED, ProcessTable, may_read_all
from exporter.storage.state_file import storage_remedy
from exporter.wiring import cpu_source, kubelet_source, simulated_file, worker_arguments

NVML_WITHIN_S = 5.0
STATE_BYTES = 1 << 16
"""What a folder must at least take: the first tables."""


@dataclass(frozen=True, slots=True)
class Line:
    text: str
    measures: bool = False
    """Whether energy can be measured by it."""


async def check(settings: Settings, idle_s: float = 0.0) -> list[Line]:
    """`idle_s`: for how long the GPUs' idle power is measured unwatched, and as long polled; 0 leaves it out."""
    feeds = carbon_feeds(carbon_providers(settings), cache=None).feeds
    lines = await _nvml(settings, idle_s) if settings.nvml else [_left_out("nvml")]
    lines += await _cpu(cpu_source(settings)) if settings.rapl else [_left_out("rapl")]
    lines += await _board(HwmonSource(settings.sysfs)) if settings.hwmon else [_left_out("hwmon")]
    lines += await _polled(HostSource()) if settings.host else [_left_out("host")]
    lines += await _opted_for(settings)
    if not feeds:
        lines.append(Line("carbon  off: no grams without --carbon.region or --carbon.intensity"))
    lines += [await _carbon(feed) for feed in feeds]
    lines.append(_state(settings))
    lines.append(Line(f"web     {web_state(settings)}"))
    return lines


def _left_out(name: str) -> Line:
    return Line(f"{name.ljust(7)} off: --no-collector.{name}")


async def _nvml(settings: Settings, idle_s: float) -> list[Line]:
    """Check NVML in the same worker process that the daemon uses, so that a hanging driver does no harm."""
    with TemporaryDirectory() as folder:  # a separate simulation: the daemon's may be in use
        simulated = simulated_file(replace(settings, state_path=Path(folder)))
        message, in_time = await _worker_message(worker_arguments(simulated))
        answered = _polled_uuids(message)
        indices = [int(gpu.index) for gpu in message.gpus if gpu.uuid in answered]
        idle = await idle_power.texts(indices, idle_s, simulated)
        lines = _nvml_lines(message)
        if not in_time:
            lines.append(Line("nvml    GPU ? fails: no answer in time; see what nvidia-smi says"))
        return [*lines, *(Line(f"idle    {text}") for text in idle)]


async def _worker_message(arguments: list[str]) -> tuple[WorkerMessage, bool]:
    """Run the worker until each GPU has answered or failed. Return its items, and whether that was in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
    except OSError as error:
        return WorkerMessage(driver_gone=(DriverGone(cannot_run(sys.executable, error)),)), True
    assert process.stdout
    message = WorkerMessage()
    try:
        async with asyncio.timeout(NVML_WITHIN_S):
            async for line in process.stdout:
                message = message.extended(decode_message(line))
                expected = message.gpu_counts[0].count if message.gpu_counts else 1
                if len(_polled_uuids(message)) + len(message.gpu_failures) >= expected:
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


def _nvml_lines(message: WorkerMessage) -> list[Line]:
    polls = {poll.device.id: poll for poll in message.polls}
    lines = []
    for gpu in message.gpus:
        poll = polls.get(gpu.uuid)
        if poll:
            how = "energy counter" if poll.counter_j is not None else "no energy counter: power is integrated"
            lines.append(Line(f"nvml    works: GPU {gpu.index}, {gpu.name}, {gpu.uuid}, {how}", measures=True))
    lines += [Line(f"nvml    GPU {failure.index} fails: {failure.reason}") for failure in message.gpu_failures]
    lines += [Line(f"nvml    off: {gone.reason}") for gone in message.driver_gone]
    if message.gpu_counts == (GpuCount(0),):
        lines.append(Line("nvml    the driver sees no GPU; try: nvidia-smi -L"))
    return lines


async def _opted_for(settings: Settings) -> list[Line]:
    """The sources that are off unless asked for. What one look may not yet meet, is told in any case."""
    lines: list[Line] = []
    if settings.processes:
        lines += await _polled(ProcessTable())
        told = any(DENIED in line.text for line in lines)
        lines += [] if told or may_read_all() else [Line(f"processes in part: {DENIED}")]
    if settings.kubelet_socket:
        lines += await _polled(kubelet_source(settings.kubelet_socket, dict))
    return lines


async def _polled(source: Source) -> list[Line]:
    name = source.name.ljust(7)
    try:
        batch = await asyncio.to_thread(source.read)
    except SourceError as error:
        return [Line(f"{name} off: {error}")]
    energies = [f"{poll.device.kind} {poll.device.id}" for poll in batch.polls]
    what = ", ".join(energies) or f"{len(batch.readings)} readings"
    return [
        Line(f"{name} works: {what}", measures=bool(energies)),
        *(Line(f"{name} in part: {problem}") for problem in batch.problems),
    ]


async def _cpu(source: CpuSource) -> list[Line]:
    """By which way the CPU's energy is read, and why not by a better one: a line for each."""
    try:
        batch = await asyncio.to_thread(source.read)
    except SourceError:
        (_, best), *others = source.refused.items()
        lines = [Line(f"rapl    off: {best}"), *(Line(f"rapl    nor by {name}: {error}") for name, error in others)]
        return [*lines, Line("rapl    may be estimated from utilization: --cpu.power-model idle=W,max=W")]
    assert source.way  # it has just been read
    refused = [Line(f"rapl    not by {name}: {error}") for name, error in source.refused.items()]
    if not batch.polls:  # the first read of a model
        return [*refused, *(Line(f"rapl    estimates: {problem}") for problem in batch.problems)]
    zones = ", ".join(f"{poll.device.kind} {poll.device.id}" for poll in batch.polls)
    works = Line(f"rapl    works: {zones}, by {source.way.name}", measures=True)
    return [works, *refused, *(Line(f"rapl    in part: {problem}") for problem in batch.problems)]


async def _board(source: HwmonSource) -> list[Line]:
    """Nothing on a board without power sensors; what they measure is in no run."""
    try:
        batch = await asyncio.to_thread(source.read)
    except SourceError as error:
        return [Line(f"hwmon   off: {error}")]
    works = [Line(f"hwmon   works: {', '.join(poll.device.id for poll in batch.polls)}")] if batch.polls else []
    return [*works, *(Line(f"hwmon   in part: {problem}") for problem in batch.problems)]


async def _carbon(feed: CarbonFeed) -> Line:
    try:
        async with aiohttp.ClientSession(trust_env=True) as session:
            await feed.refresh(session)
    except SourceError as error:
        return Line(f"carbon  fails: {error}")
    slot = feed.slot_at(time.time())
    assert slot  # `refresh` raises where no slot covers the time now
    what = f"{slot.grams_per_kwh:g} gCO2eq/kWh ({slot.quality}, {slot.provider}, {slot.basis})"
    return Line(f"carbon  works: {slot.region}, {what}")


def _state(settings: Settings) -> Line:
    """Looks, and leaves alone what may belong to a running exporter."""
    folder = settings.state_path
    if folder.exists() and not folder.is_dir():
        return Line(f"state   cannot use {folder}: it is a file; name a folder with --state.path")
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        if (folder / STATE_FILE).exists():
            with closing(sqlite3.connect(f"{(folder / STATE_FILE).resolve().as_uri()}?mode=ro", uri=True)) as state:
                state.execute("SELECT COUNT(*) FROM meta").fetchone()
        with TemporaryFile(dir=there) as file:
            file.write(bytes(STATE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        advice = f"{storage_remedy(error)}, or choose another folder with --state.path"
        return Line(f"state   cannot write to {folder}: {reason}; {advice}")
    return Line(f"state   works: {folder}" if folder == there else f"state   will be made: {folder}")
