"""Processes of the server under load, which the run of `llm-server` registers as its own."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil

import wattline
from wattline.client.api import Api, ExporterError
from wattline.client.contributor import processes_body
from wattline.client.messages import log_message
from wattline.integrations.served_requests import is_job

_TIMEOUT_S = 10.0
_CHECK_S = 1.0
_ANY_ADDRESS = {"0.0.0.0", "::"}  # noqa: S104  # compared, not bound
_PORTS = {"http": 80, "https": 443}


class ServerProcesses:
    """Processes that listen at a local `url`, which are in the run unless another job has added
    them to its own.

    The GPU works for them, not for the job: without them, the run would have no part of a GPU that
    runs share.
    """

    def __init__(self, run: wattline.ActiveRun, url: str) -> None:
        self._run = run
        self._url = url
        self._registered: list[psutil.Process] = []
        self._checked_s = time.monotonic()

    def register(self) -> None:
        """Add the processes to the run, or log why they cannot be added."""
        addresses, port = _local_addresses(self._url)
        if self._run.run_id is None or not addresses:
            return
        pids = listening_pids(addresses, port)
        if not pids:
            log_message(
                f"cannot find the process that listens at {self._url}: it is in a container or of "
                "another user; if "
                f"runs share its GPU, add it with POST /api/v1/runs/{self._run.run_id}/processes "
                "(pids, or cgroup "
                "container:ID)"
            )
        elif other := _other_job(self._run.run_id, pids):
            log_message(
                f"the server is in run {other} of another job, which is attributed its energy; "
                "start one job at a time"
            )
        elif cause := self._run.register(pids=pids):
            log_message(f"cannot add the server to the run: {cause}")
        else:
            self._registered = list(_running(pids))

    def note_answer(self) -> None:
        """After a restart of the server, which has just answered, add its processes from a thread.

        The registered processes are checked once a second.
        """
        now_s = time.monotonic()
        if now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            if any(map(_has_ended, self._registered)):
                self._registered = []
                threading.Thread(target=self.register, name="server", daemon=True).start()


def _running(pids: Iterable[int]) -> Iterator[psutil.Process]:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _has_ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def listening_pids(addresses: Iterable[str], port: int) -> list[int]:
    """Return the processes that listen on the port; of a process and its children with the same
    socket, the first.
    """
    wanted = {*addresses, *_ANY_ADDRESS}
    pids = {
        each.pid
        for each in psutil.net_connections("tcp")
        if each.pid and _listens(each, wanted, port)
    }
    return sorted({_first_listener(pid, wanted, port) for pid in pids})


def _first_listener(pid: int, addresses: Collection[str], port: int) -> int:
    """Return the first process of the line of a process that listens: psutil names any one of those
    with a socket.
    """
    try:
        for parent in psutil.Process(pid).parents():
            if not any(_listens(each, addresses, port) for each in parent.net_connections("tcp")):
                break
            pid = parent.pid
    except psutil.Error:  # the parent is of another user, or has ended
        return pid
    return pid


def _listens(connection: Any, addresses: Collection[str], port: int) -> bool:
    place = connection.laddr
    return (
        connection.status == psutil.CONN_LISTEN
        and place.port == port
        and _ip(place.ip) in addresses
    )


def _local_addresses(url: str) -> tuple[set[str], int]:
    """Return the addresses of the URL that this machine has, and its port."""
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    try:
        found = {
            _ip(str(each[4][0]))
            for each in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
        }
    except OSError:
        return set(), port
    own = {_ip(each.address) for addresses in psutil.net_if_addrs().values() for each in addresses}
    return {each for each in found if each in own or each.startswith("127.")}, port


def _ip(address: str) -> str:
    """Return an address without its zone, and an IPv4 address in IPv6 as IPv4."""
    return address.partition("%")[0].removeprefix("::ffff:")


def _other_job(run_id: str, pids: list[int]) -> str | None:
    """Return the run of another job that has one of these processes.

    Any other run of them is outside this one: a discovered run, the one with which the server was
    started, or the one that the server began for its own reports. The exporter still divides the
    energy among the server's requests.
    """
    namespace = processes_body().get("pid_namespace", "")
    query = "&".join(f"pid={pid}" for pid in pids)
    api = Api.configured(os.environ, timeout_s=_TIMEOUT_S)
    try:
        runs = api.get_list(f"/runs?state=running&pid_namespace={namespace}&{query}")
    except ExporterError:
        return None
    return next(
        (str(run["run_id"]) for run in runs if run["run_id"] != run_id and is_job(run)), None
    )
