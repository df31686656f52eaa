"""`exporter check`: one line per source, whether it works, or the cause and the remedy."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import ssl
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryFile

import aiohttp

from wattline.contract.history import STATE_FILE
from wattline_exporter.cli.check_discovery import discovery_lines
from wattline_exporter.cli.check_gpus import gpu_lines
from wattline_exporter.cli.kubernetes import kubelet_source
from wattline_exporter.config.reloadable_file import ConfigFileError
from wattline_exporter.config.settings import Settings
from wattline_exporter.config.values import OperationError, UsageError
from wattline_exporter.sensors.carbon.choice import carbon_feeds, carbon_providers
from wattline_exporter.sensors.carbon.feed import CarbonFeed
from wattline_exporter.sensors.carbon.options import CarbonOptions
from wattline_exporter.sensors.carbon.transport import AiohttpTransport
from wattline_exporter.sensors.kubernetes.pod_gpus import PodGpuAssignments
from wattline_exporter.sensors.processes.table import DENIED, ProcessTable, may_read_all
from wattline_exporter.sensors.readings import SourceError
from wattline_exporter.sensors.registry import (
    CheckLine,
    ChosenSensor,
    SensorContext,
    check_source,
)
from wattline_exporter.storage.file_versions import (
    FILE_SCHEMAS,
    FileVersionError,
    check_file_version,
)
from wattline_exporter.storage.state_file import LOCK_FILE, storage_remedy
from wattline_exporter.web.access import is_loopback
from wattline_exporter.web.authentication import ApiToken
from wattline_exporter.web.server import listen_tcp, unix_address
from wattline_exporter.web.web_config import load_web_config

DEFAULT_UNPRIVILEGED_PORT = 1024


def describe_web(settings: Settings) -> str:
    """Return the address, the authentication and the capability that the configured server
    needs.
    """
    try:
        host, port = settings.address()
        unix = unix_address(settings)
        config = load_web_config(settings.web_config) if settings.web_config else None
        if settings.api_token_file:
            ApiToken(settings.api_token_file)
    except (ConfigFileError, UsageError) as error:
        return f"fails: {error}"
    if unix and not os.access(unix.path.parent, os.W_OK):
        return (
            f"fails: --web.api-socket: cannot write to {unix.path.parent}; create it for this user"
        )
    scheme = "https" if config and config.tls else "http"
    authentication = [
        *(["basic auth"] if config and config.users else []),
        *(
            ["client certificates"]
            if config and config.tls and config.tls.verify == ssl.CERT_REQUIRED
            else []
        ),
    ]
    is_open_over_tcp = bool(config and config.requires_authentication) or is_loopback(host)
    capability = (
        f"CAP_NET_BIND_SERVICE needed for port {port}"
        if 0 < port < _first_unprivileged_port()
        else "no capability needed"
    )
    return (
        f"works: {scheme} on {settings.listen_address}, "
        f"{' and '.join(authentication) or 'no authentication'}; "
        f"run API: {_describe_run_api(settings, is_open_over_tcp=is_open_over_tcp)}; {capability}"
    )


def _describe_run_api(settings: Settings, *, is_open_over_tcp: bool) -> str:
    ways = [f"unix://{settings.api_socket}"] if settings.api_socket else []
    if settings.api_token_file:
        ways.append("TCP with the token")
    if ways:
        return " and ".join(ways)
    if is_open_over_tcp:
        return "enabled over TCP"
    return (
        "refused over TCP on a non-loopback address (set --web.api-socket, "
        "--web.api-token-file or basic auth)"
    )


def _first_unprivileged_port() -> int:
    """Return the first port that any user may listen on."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    except (OSError, ValueError):
        return DEFAULT_UNPRIVILEGED_PORT


_RUNNING = "; an exporter is running there: stop it before you start another"
STATE_BYTES = 1 << 16
"""Size of the first tables, for which the disk must have space."""


async def run_checks(
    settings: Settings,
    sensors: Sequence[ChosenSensor],
    carbon: CarbonOptions,
    idle_s: float = 0.0,
) -> list[CheckLine]:
    """Read each source once. `idle_s` is the duration of the idle power measurement; 0 skips it."""
    feeds = carbon_feeds(carbon_providers(carbon), cache=None).feeds
    lines = (
        await gpu_lines(settings, idle_s)
        if settings.nvml
        else [CheckLine("nvml    off: --no-collector.nvml")]
    )
    context = SensorContext(sysfs=settings.sysfs)
    for sensor in sensors:
        lines += await asyncio.to_thread(sensor.check, context)
    lines += await _optional_sources(settings)
    lines += await discovery_lines(settings)
    if not feeds:
        lines.append(
            CheckLine("carbon  off: no emissions without --carbon.region or --carbon.intensity")
        )
    for feed in feeds:
        lines += await _carbon_lines(feed)
    lines += [_state_line(settings), await _web_line(settings)]
    return [*lines, _result_line(lines)]


def _result_line(lines: Sequence[CheckLine]) -> CheckLine:
    """Return the final line; it agrees with the exit code."""
    if any(line.fails for line in lines):
        return CheckLine(
            "result  fails: the exporter cannot start with these options; see the lines above"
        )
    if not any(line.measures for line in lines):
        return CheckLine("result  fails: no source measures energy; see the lines above")
    return CheckLine("result  works: energy can be measured")


async def _web_line(settings: Settings) -> CheckLine:
    """Return the line of the web server; it fails while a process other than this exporter listens
    on the address.
    """
    note = ""
    try:
        for listening in await listen_tcp(settings):
            listening.close()
    except (OperationError, UsageError) as error:  # `describe_web` states the others
        in_use = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        if in_use and not _is_running(settings.state_path):
            return CheckLine(f"web     fails: {error}", fails=True)
        note = _RUNNING if in_use else ""
    text = describe_web(settings)
    return CheckLine(f"web     {text}{note}", fails=text.startswith("fails"))


def _is_running(state_path: Path) -> bool:
    """Return whether an exporter runs with this state folder, as far as this user may read its
    lock.
    """
    try:
        with (state_path / LOCK_FILE).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


async def _optional_sources(settings: Settings) -> list[CheckLine]:
    """Read the sources that are off by default. A restriction is reported even if the first read
    did not meet it.
    """
    lines: list[CheckLine] = []
    if settings.processes:
        lines += await asyncio.to_thread(check_source, ProcessTable())
        is_reported = any(DENIED in line.text for line in lines)
        lines += (
            [] if is_reported or may_read_all() else [CheckLine(f"processes in part: {DENIED}")]
        )
    kubelet = kubelet_source(settings, gpus=None)
    if kubelet:
        lines += await _kubelet_lines(kubelet.assignments)
    return lines


async def _kubelet_lines(assignments: PodGpuAssignments) -> list[CheckLine]:
    """Read the GPUs of pods once. Devices whose GPU is unknown are parts that fail."""
    try:
        read = await asyncio.to_thread(assignments.read)
    except SourceError as error:
        return [CheckLine(f"kubelet off: {error}")]
    pods = {(gpu.namespace, gpu.pod) for gpu in read.gpus}
    counts = (
        f"pods with GPUs: {len(pods)}, GPUs and MIG instances: "
        f"{len({gpu.uuid for gpu in read.gpus})}"
    )
    return [
        CheckLine(f"kubelet works: {counts}"),
        *(CheckLine(f"kubelet in part: {text}") for text in read.problems()),
    ]


async def _carbon_lines(feed: CarbonFeed) -> list[CheckLine]:
    try:
        async with aiohttp.ClientSession() as session:
            batch = await feed.refresh(AiohttpTransport(session))
    except SourceError as error:
        return [CheckLine(f"carbon  fails: {error}")]
    slot = feed.slot_at(time.time())
    assert slot  # `refresh` raises if no slot covers the current time
    facts = ", ".join(dict.fromkeys((slot.quality, slot.provider, slot.basis)))
    intensity = f"{slot.grams_per_kwh:g} gCO2eq/kWh ({facts})"
    return [
        CheckLine(f"carbon  works: {slot.region}, {intensity}"),
        *(CheckLine(f"carbon  in part: {problem}") for problem in batch.problems),
    ]


def _state_line(settings: Settings) -> CheckLine:
    """Check the state folder without changing files of a running exporter."""
    folder = settings.state_path
    if folder.exists() and not folder.is_dir():
        return CheckLine(
            f"state   cannot use {folder}: it is a file; set --state.path to a folder", fails=True
        )
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        for name in FILE_SCHEMAS:
            check_file_version(folder / name)
        if (folder / STATE_FILE).exists():
            with closing(
                sqlite3.connect(f"{(folder / STATE_FILE).resolve().as_uri()}?mode=ro", uri=True)
            ) as state:
                state.execute("SELECT COUNT(*) FROM meta").fetchone()
        with TemporaryFile(dir=existing) as file:
            file.write(bytes(STATE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except FileVersionError as error:
        return CheckLine(f"state   {error}", fails=True)
    except (OSError, sqlite3.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        advice = f"{storage_remedy(error)}, or choose another folder with --state.path"
        return CheckLine(f"state   cannot write to {folder}: {reason}; {advice}", fails=True)
    if folder != existing:
        return CheckLine(f"state   works: {folder} will be created")
    return CheckLine(f"state   works: {folder}{_RUNNING if _is_running(folder) else ''}")
