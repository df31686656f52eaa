"""The exporter that a run is told to: the one in reach, or one that is started for it."""

from __future__ import annotations

import http
import os
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from exporter.contract.history import HISTORY_FILE
from workloads.client.api import DEFAULT_ADDRESS, EXPORTER, Api, BarredError, ExporterError, UnreachableError
from workloads.client.messages import say

_READY_WITHIN_S = 20.0
_OTHER_READY_WITHIN_S = 5.0  # who lost the race for the port waits for the one who won it
_POLL_S = 0.05
_LOG_FILE = "exporter.log"


class StartError(ExporterError):
    """No exporter could be started."""


@dataclass(frozen=True, slots=True)
class Reached:
    api: Api
    source: str | None
    """What the analyzer has to be told with `--source` to find the run; None where it finds it by itself."""


def find(option: str | None, environ: Mapping[str, str]) -> Reached:
    """`--exporter`, else WATTLINE_EXPORTER, else the default address, at which one is started where nothing answers.

    Raises ExporterError. An exporter that was named and does not answer is an error, no reason to start another.
    """
    named = option or environ.get(EXPORTER)
    if not named:
        return find_or_start(DEFAULT_ADDRESS, environ)
    api = Api(named)
    try:
        api.readiness()
    except BarredError as error:
        raise BarredError(f"{error} ({'--exporter' if option else EXPORTER})") from error
    except UnreachableError as error:
        origin = "--exporter" if option else EXPORTER
        raise UnreachableError(
            f"{error} ({origin}); start it there with exporter serve, or leave {origin} out to have one started here"
        ) from error
    return Reached(api, None if named.startswith("unix:") else api.public_address)


def find_or_start(address: str, environ: Mapping[str, str], command: Sequence[str] | None = None) -> Reached:
    api = Api(address)
    if _status(api) == http.HTTPStatus.OK:
        return Reached(api, None)
    state = state_folder(environ)
    if _status(api) is None:
        is_ours = _start(api, state, command or _serve(address, state))
        return Reached(api, str(state / HISTORY_FILE) if is_ours else None)
    if _status(api) == http.HTTPStatus.SERVICE_UNAVAILABLE:  # an exporter that is starting
        _await(api, _READY_WITHIN_S)
    if _status(api) != http.HTTPStatus.OK:
        raise StartError(
            f"what answers at {address} is no exporter that is ready; see what listens there, or use --exporter"
        )
    return Reached(api, None)


def state_folder(environ: Mapping[str, str]) -> Path:
    """The XDG state folder's `wattline`; XDG says that a path which is not absolute is to be ignored."""
    named = environ.get("XDG_STATE_HOME", "")
    return (Path(named) if named.startswith("/") else Path.home() / ".local" / "state") / "wattline"


def _serve(address: str, state: Path) -> list[str]:
    """-P and the root folder: what lies beside the user's script must not be imported in place of the exporter."""
    serve = [sys.executable, "-P", "-m", "exporter.cli.main", "serve", "--exit-when-idle", "--state.path", str(state)]
    return [*serve, "--web.listen-address", address.removeprefix("http://")]


def _start(api: Api, state: Path, command: Sequence[str]) -> bool:
    """Whether the exporter that answers is ours: two users may do this at once, and one gets the port."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        log = (state / _LOG_FILE).open("ab")
    except OSError as error:
        raise StartError(
            f"no exporter can be started: {state} cannot be written ({error.strerror}); set XDG_STATE_HOME to a folder "
            "that can, or name a running exporter with --exporter"
        ) from error
    with log:
        before = os.fstat(log.fileno()).st_size
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
        if _await(api, _READY_WITHIN_S, daemon) or _await(api, _OTHER_READY_WITHIN_S):
            is_ours = _listens(daemon.pid, api)
            if is_ours:
                say(f"no exporter at {api.address}, so one was started; it ends with its last run")
            return is_ours
        is_running = daemon.poll() is None
    if is_running:
        daemon.terminate()
        daemon.wait()
    raise StartError(
        f"no exporter answers at {api.address}, and one started for this run "
        f"{'was not ready in time' if is_running else f'ended with exit code {daemon.returncode}'}: "
        f"{_last_line(state / _LOG_FILE, before)}; try it by hand: exporter serve"
    )


def _await(api: Api, within_s: float, daemon: subprocess.Popen[bytes] | None = None) -> bool:
    """Whether the exporter became ready; given up at once where `daemon` has ended."""
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
    except psutil.Error:  # it has ended
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)


def _status(api: Api) -> int | None:
    try:
        return api.readiness()
    except UnreachableError:
        return None


def _last_line(log: Path, begin: int) -> str:
    """Of what was written since `begin`."""
    lines = log.read_bytes()[begin:].decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"{log} says nothing")
