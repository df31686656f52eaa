"""The composition root: settings to sources to a daemon that serves until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from exporter import simulation
from exporter.daemon import App, Parts
from exporter.model import boottime
from exporter.polled import polled, power_model
from exporter.push.config import push_target
from exporter.settings import LogFormat, LogLevel, Settings, UsageError
from exporter.sources.carbon.cache import CarbonCache
from exporter.sources.carbon.config import carbon_feeds, carbon_providers
from exporter.storage.history import History
from exporter.storage.state_file import State
from exporter.web.routes import application
from exporter.web.server import WebServer

log = logging.getLogger(__name__)


async def serve(settings: Settings, level: LogLevel, form: LogFormat) -> None:
    """Raises UsageError and OperationError before anything is served. Ends the process once it was told to stop."""
    providers = carbon_providers(settings)
    power_model(settings)  # a usage error comes before any file is made
    start_logging(level, form)
    target = push_target(settings)
    served = WebServer(settings)
    state = State(settings.state_path)
    simulated = simulated_file(settings)
    roles: dict[str, int] = {}
    history = History(settings.state_path) if settings.history else None
    if history and target:
        history.follow(target.url)
    parts = Parts(
        state=state,
        history=history,
        polled=polled(settings, roles, lambda: app.store.gpus),
        nvml_arguments=sampler_arguments(settings, simulated),
        carbon=carbon_feeds(providers, CarbonCache(settings.state_path) if providers else None),
        simulation=simulated,
        exit_when_idle=settings.exit_when_idle,
        version=version("wattline"),
        push=target,
        roles=roles,
    )
    app = App(parts)
    loop = asyncio.get_running_loop()
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, app.finished.set)
    try:
        address = await served.start(application(app, served.guard))
        log.info("serving on %s, state in %s", address, settings.state_path)
        await app.run()
    finally:
        await served.close()
        await app.close()
    log.info("stopped")
    _leave()


def _leave() -> NoReturn:
    """At once: Python would wait for threads that nobody waits for, in the resolver, a hung read or a long question."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def sampler_arguments(settings: Settings, simulated: Path | None) -> list[str] | None:
    if not settings.nvml:
        return None
    return ["exporter.nvml_worker.main", *([str(simulated)] if simulated else [])]


def simulated_file(settings: Settings) -> Path | None:
    """The state file of the simulated GPUs, made where it is not there yet. Raises UsageError."""
    if settings.simulate is None:
        return None
    try:
        gpus = simulation.make_gpus(*simulation.parse_spec(settings.simulate))
    except ValueError as error:
        raise UsageError(f"--simulate: {error}") from error
    path = settings.state_path / simulation.FILE_NAME
    if _holds(path, gpus):
        return path
    settings.state_path.mkdir(parents=True, exist_ok=True)
    simulation.create(path, gpus, boottime())
    return path


def _holds(path: Path, gpus: tuple[simulation.Gpu, ...]) -> bool:
    """Whether the file has these GPUs and is of this boot, so that their energy goes on from where it was."""
    try:
        with simulation.Simulation.open(path) as found:
            same = [g.product for g in found.gpus] == [g.product for g in gpus]
            return same and found.state.driver_loaded_at_s <= boottime()
    except simulation.StateFileError:
        return False


class _Lines(logging.Formatter):
    """logfmt or JSON, one line a record."""

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._json = form is LogFormat.json

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        message = record.getMessage()
        if record.exc_info:
            message = f"{message} {self.formatException(record.exc_info)}"
        fields = {"time": moment, "level": record.levelname.lower(), "logger": record.name, "msg": message}
        if self._json:
            return json.dumps(fields)
        return (
            f"time={moment} level={fields['level']} logger={record.name} msg={json.dumps(message, ensure_ascii=False)}"
        )


def start_logging(level: LogLevel, form: LogFormat) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(form))
    logging.basicConfig(level={"warn": "WARNING"}.get(level.value, level.value.upper()), handlers=[handler])
