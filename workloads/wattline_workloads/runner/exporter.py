"""Exporter of a run: the configured one, the one at the default address, or a new one."""

from __future__ import annotations

import contextlib
import http
import os
import subprocess
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from wattline.client.api import (
    DEFAULT_ADDRESS,
    AccessDeniedError,
    Api,
    ExporterError,
    UnreachableError,
)
from wattline.client.messages import log_message
from wattline.command_line import module_command, user_state_folder
from wattline.contract.history import HISTORY_FILE

_READY_WITHIN_S = 20.0
_OTHER_READY_WITHIN_S = (
    5.0  # after a lost race for the port: time for the other exporter to be ready
)
_ENDS_WITHIN_S = 5.0
_POLL_S = 0.05
_LOG_FILE = "exporter.log"


class ExporterStartError(ExporterError):
    """Exporter that could not be started."""


@dataclass(frozen=True, slots=True)
class ExporterConnection:
    api: Api
    source: str | None
    """Value of the analyzer's `--source` for this run; None if its default finds the run."""
    daemon: subprocess.Popen[bytes] | None = None
    """Exporter that this process started; it ends with its last run, or if a run cannot begin."""

    def await_end(self) -> None:
        """Wait for the end of a started exporter, so that the next command does not find it; not
        for long.
        """
        if self.daemon is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemon.wait(_ENDS_WITHIN_S)


def find_exporter(option: str | None, environ: Mapping[str, str]) -> ExporterConnection:
    """Connect to `--exporter`, else WATTLINE_EXPORTER, else the default address; start an exporter
    only at the default.

    Raises ExporterError, also if a configured exporter does not answer.
    """
    api = Api.configured(environ, option, option="--exporter")
    if not api.origin:
        return find_or_start_exporter(DEFAULT_ADDRESS, environ)
    try:
        api.readiness()
    except AccessDeniedError as error:
        raise AccessDeniedError(f"{error} ({api.origin})") from error
    except UnreachableError as error:
        raise UnreachableError(
            f"{error} ({api.origin}); start it on that host with exporter serve, or omit "
            f"{api.origin} to start one here"
        ) from error
    return ExporterConnection(api, api.analyzer_source)


def find_or_start_exporter(
    address: str, environ: Mapping[str, str], command: Sequence[str] | None = None
) -> ExporterConnection:
    api = Api(address)
    if _status(api) == http.HTTPStatus.OK:
        return ExporterConnection(api, None)
    state = user_state_folder(environ)
    if _status(api) is None:
        daemon = _start(api, state, command or _serve(address, state))
        return ExporterConnection(api, str(state / HISTORY_FILE) if daemon else None, daemon)
    if _status(api) == http.HTTPStatus.SERVICE_UNAVAILABLE:  # an exporter that is starting
        _await(api, _READY_WITHIN_S)
    if _status(api) != http.HTTPStatus.OK:
        raise ExporterStartError(
            f"cannot use {address}: another program listens there, or an exporter that is not "
            "ready; set --exporter"
        )
    return ExporterConnection(api, None)


def _serve(address: str, state: Path) -> list[str]:
    """Return the command of an exporter. -P and cwd=/ keep it from importing modules of the user's
    folder.
    """
    serve = module_command(
        "wattline_exporter.cli.main", "serve", "--exit-when-idle", "--state.path", str(state)
    )
    return [*serve, "--web.listen-address", address.removeprefix("http://")]


def _start(api: Api, state: Path, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start an exporter; return None if a concurrently started one got the port. Raises
    ExporterStartError.
    """
    try:
        state.mkdir(parents=True, exist_ok=True)
        log = (state / _LOG_FILE).open("ab")
    except OSError as error:
        raise ExporterStartError(
            f"cannot start an exporter: cannot write {state}: {error.strerror}; set XDG_STATE_HOME "
            "to a writable "
            "folder, or name a running exporter with --exporter"
        ) from error
    with log:
        before = os.fstat(log.fileno()).st_size
        daemon = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
        if _await(api, _READY_WITHIN_S, daemon) or _await(api, _OTHER_READY_WITHIN_S):
            if not _listens(daemon.pid, api):
                return None
            log_message(f"started an exporter at {api.address}; it ends with its last run")
            return daemon
        is_running = daemon.poll() is None
    if is_running:
        daemon.terminate()
        daemon.wait()
    ending = "was not ready in time" if is_running else f"ended with exit code {daemon.returncode}"
    raise ExporterStartError(
        f"cannot start an exporter at {api.address}: it {ending}: "
        f"{_last_line(state / _LOG_FILE, before)}; try exporter serve"
    )


def _await(api: Api, within_s: float, daemon: subprocess.Popen[bytes] | None = None) -> bool:
    """Wait until the exporter is ready; return False after the timeout or once `daemon` has
    ended.
    """
    give_up_s = time.monotonic() + within_s
    while time.monotonic() < give_up_s:
        if _status(api) == http.HTTPStatus.OK:
            return True
        if daemon is not None and daemon.poll() is not None:
            return False
        time.sleep(_POLL_S)
    return False


def _listens(pid: int, api: Api) -> bool:
    port = urllib.parse.urlsplit(api.address).port
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.Error:  # the process has ended
        return False
    return any(
        each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections
    )


def _status(api: Api) -> int | None:
    try:
        return api.readiness()
    except UnreachableError:
        return None


def _last_line(log: Path, start: int) -> str:
    """Return the last line after byte `start`."""
    lines = log.read_bytes()[start:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"{log} is empty")
