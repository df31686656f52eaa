"""The daemon: assembly of its services from the settings, their start and stop, and its log."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from wattline_exporter.attribution.owner_counters import OwnerCounters
from wattline_exporter.attribution.policy import Attribution
from wattline_exporter.cli.otlp import otlp_metrics, otlp_receiver
from wattline_exporter.cli.sources import (
    gpu_indices,
    polled_sources,
    simulated_file,
    simulated_gpus,
    worker_arguments,
)
from wattline_exporter.config.request_options import RequestSettings
from wattline_exporter.config.run_options import RunSeries
from wattline_exporter.config.settings import LogFormat, LogLevel, Settings
from wattline_exporter.polling.carbon import CarbonService
from wattline_exporter.polling.hub import SensorHub
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.polling.meters import SavedTotals
from wattline_exporter.requests.service import RequestService
from wattline_exporter.requests.store import RequestStore
from wattline_exporter.runs.discovery.pending_cgroups import PendingCgroups
from wattline_exporter.runs.holders import DeviceHolders
from wattline_exporter.runs.ledger import Ledger
from wattline_exporter.runs.limits import RunLimits
from wattline_exporter.runs.service import RunService
from wattline_exporter.sensors.carbon.cache import CarbonCache
from wattline_exporter.sensors.carbon.choice import ChosenProvider, carbon_feeds, carbon_providers
from wattline_exporter.sensors.carbon.feed import CarbonFeeds
from wattline_exporter.sensors.carbon.options import CarbonOptions
from wattline_exporter.sensors.node import NodeInfo
from wattline_exporter.sensors.nvml.supervisor import WorkerSupervisor
from wattline_exporter.sensors.processes.exits import ProcessExits
from wattline_exporter.sensors.readings import Service, boottime
from wattline_exporter.sensors.registry import ChosenSensor
from wattline_exporter.storage.history import History
from wattline_exporter.storage.state_file import StateError, StateFile, read_boot_id
from wattline_exporter.storage.writer import DiskHealth, HistoryWriter, StateWriter, StorageFiles
from wattline_exporter.web.metrics_page import MetricsRenderer, SavedMetrics
from wattline_exporter.web.routes import Endpoints, web_application
from wattline_exporter.web.series import ReadingSource, SeriesCollector
from wattline_exporter.web.server import WebServer

NEW_OBJECTS = 5_000
"""New objects after which the garbage collector runs. Python's 700 come with each second's metrics:
with eight runs that come and go, this takes 4 % less CPU time and no more memory.
"""

log = logging.getLogger(__name__)


async def run_daemon(
    settings: Settings,
    sensors: Sequence[ChosenSensor],
    carbon: CarbonOptions,
    level: LogLevel,
    log_format: LogFormat,
) -> None:
    """Run the daemon until SIGTERM or SIGINT, then end the process. Raises UsageError and
    OperationError.
    """
    providers = carbon_providers(carbon)
    simulated_gpus(settings)  # a usage error comes before any file is made
    start_logging(level, log_format)
    server = WebServer(settings)
    stopping = asyncio.Event()
    daemon = make_daemon(settings, sensors, providers, server, stopping)
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stopping.set)
    gc.collect()
    gc.freeze()  # the modules stay until the end
    gc.set_threshold(NEW_OBJECTS)
    await daemon.run()
    log.info("stopped")
    _exit()


def make_daemon(
    settings: Settings,
    sensors: Sequence[ChosenSensor],
    providers: Sequence[ChosenProvider],
    server: WebServer,
    stopping: asyncio.Event,
) -> Daemon:
    """Put the services together. Raises UsageError and OperationError."""
    file = StateFile(settings.state_path)
    limits = RunLimits(
        max_open=settings.max_runs,
        tail_s=settings.run_tail_s(),
        min_s=settings.min_run_seconds,
        min_j=settings.min_run_joules,
        is_slim=settings.run_series is RunSeries.slim,
    )
    created = simulated_file(settings)
    simulated = created.path if created else None
    carbon = carbon_feeds(providers, CarbonCache(settings.state_path) if providers else None)
    health = DiskHealth(file.folder)
    history = HistoryWriter(History(settings.state_path), health) if settings.history else None
    live, ledger = restore_state(file, carbon, limits)
    live.simulation = str(simulated) if simulated else None
    if created and created.is_new and live.energy.meters:
        live.energy.expect_new_counters()
        log.info(
            "the simulated GPUs are new: their energy counters start from 0, and the exported "
            "totals continue"
        )
    worker = (
        WorkerSupervisor(worker_arguments(simulated), live.take_worker) if settings.nvml else None
    )
    kubelet = None
    if settings.kubelet_socket is not None:
        from wattline_exporter.cli.kubernetes import kubelet_source  # 1 MB with TLS

        kubelet = kubelet_source(settings, partial(gpu_indices, live))
    hub = SensorHub(
        live,
        polled_sources(settings, sensors, live, worker, [kubelet] if kubelet else []),
        worker,
    )
    carbon_service = CarbonService(carbon, live)
    with_metrics: list[ReadingSource] = [
        NodeInfo(is_simulated=simulated is not None),
        health,
        carbon_service,
    ]
    collector = SeriesCollector(version("wattline"), live, ledger, with_metrics)
    storage = StateWriter(file, ledger, health, history, collector.second)
    kinds = settings.discovered_kinds()
    runs = RunService(
        ledger,
        hub,
        storage,
        stopping=stopping,
        exit_when_idle=settings.exit_when_idle,
        discovers=bool(kinds),
        exits=ProcessExits(),
    )
    discovery: list[Service] = []
    if kinds:
        from wattline_exporter.cli.discovery import discovery_services  # 1 MB

        directories, finder = discovery_services(settings, kinds, kubelet, live, runs)
        discovery += [*directories, finder]
        with_metrics.append(finder)
    request_settings = RequestSettings.of(
        settings.max_request_rate,
        settings.request_window,
        settings.request_lateness,
        settings.request_labels,
    )
    requests = RequestService(
        runs,
        live,
        RequestStore(settings.state_path),
        request_settings,
    )
    with_metrics.append(requests)
    traces = (
        otlp_receiver(request_settings.labels, ledger, requests, live)
        if settings.otlp_traces
        else None
    )
    if traces:
        with_metrics.append(traces)
    metrics = SavedMetrics(
        MetricsRenderer(collector.series, collect_native=requests.native_buckets), storage, stopping
    )
    endpoints = Endpoints(
        runs=runs,
        requests=requests,
        traces=traces,
        sensors=hub,
        metrics=metrics,
        history=history.history.path if history else None,
        version=version("wattline"),
        carbon=carbon.document,
    )
    http = HttpService(server, web_application(endpoints, server.access), settings.state_path)
    return Daemon(
        [
            StorageFiles(storage, history),
            storage,
            *otlp_metrics(settings.otlp_metrics_url, metrics.readings),
            hub,
            carbon_service,
            runs,
            requests,
            PendingCgroups(runs),
            *discovery,
            http,
        ],
        stopping,
    )


def restore_state(
    file: StateFile, carbon: CarbonFeeds, limits: RunLimits
) -> tuple[LiveState, Ledger]:
    """Return sensors and ledger as a previous exporter left them. Raises StateError."""
    saved = file.load()
    same_boot = saved.boot_id == read_boot_id()
    saved_s = saved.saved_s if same_boot else None
    live = LiveState(
        SavedTotals(saved.totals, saved.emissions, saved.counters, saved_s, saved.polls),
        slots_at=carbon.slots_at,
    )
    live.energy.restore_short_windows(saved.short_windows)
    energy_j = {device: total.energy_j for device, total in saved.totals.items()}
    owners = OwnerCounters(saved.owners, saved.emissions)
    energies = Attribution(saved.attributed, energy_j, saved.idle_w, saved_s, owners=owners)
    ledger = Ledger(live, DeviceHolders(live, energies, saved_s or boottime()), file, limits=limits)
    try:
        ledger.restore(saved, same_boot=same_boot)
    except ValueError as error:
        raise StateError(
            f"cannot read the runs in {file.folder}: {str(error).splitlines()[0]}; move it away to "
            "start afresh"
        ) from error
    return live, ledger


class HttpService(Service):
    """The web server with its application."""

    def __init__(self, server: WebServer, served: web.Application, state_path: Path) -> None:
        self._server = server
        self._served = served
        self._state_path = state_path

    async def start(self) -> None:
        address = await self._server.start(self._served)
        log.info("serving on %s, state in %s", address, self._state_path)

    async def stop(self) -> None:
        await self._server.close()


def _exit() -> NoReturn:
    """End the process at once, without waiting for threads in the resolver, a hung read or a long
    query.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Daemon:
    """Services in the order of their start. They stop in the opposite order, once `stopping` is
    set.
    """

    def __init__(self, services: Sequence[Service], stopping: asyncio.Event) -> None:
        self._services = services
        self._stopping = stopping

    async def run(self) -> None:
        """Start all services, run them until `stopping` is set, and stop them."""
        try:
            for service in self._services:
                await service.start()
            await self._run_services()
        finally:
            for service in reversed(self._services):
                await service.stop()

    async def _run_services(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(service.run()) for service in self._services]
            await self._stopping.wait()
            for task in running:
                task.cancel()


class LogFormatter(logging.Formatter):
    """One line per record, in logfmt or JSON."""

    def __init__(self, log_format: LogFormat) -> None:
        super().__init__()
        self._json = log_format is LogFormat.json

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        message = record.getMessage()
        if record.exc_info:
            message = f"{message} {self.formatException(record.exc_info)}"
        fields = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": message,
        }
        if self._json:
            return json.dumps(fields)
        return (
            f"time={moment} level={fields['level']} logger={record.name} "
            f"msg={json.dumps(message, ensure_ascii=False)}"
        )


def start_logging(level: LogLevel, log_format: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(log_format))
    logging.basicConfig(
        level={"warn": "WARNING"}.get(level.value, level.value.upper()), handlers=[handler]
    )
