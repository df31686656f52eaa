"""Work totals of one process, posted to the run by a separate thread."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import threading
from collections.abc import Mapping

from workloads.client.api import Api, ExporterError
from workloads.client.messages import log_message_once
from workloads.client.values import MAX_UNITS

_POST_EVERY_S = 0.25
_THREAD_ENDS_WITHIN_S = 15.0


def contributor_name(environ: Mapping[str, str]) -> str:
    """Return a name of this process that is unique over all nodes and over reused pids."""
    return _name(os.getpid(), environ.get("RANK"))


@functools.cache
def _name(pid: int, rank: str | None) -> str:
    part = "" if rank is None else f"rank-{rank}-"
    return f"{socket.gethostname()[:64]}-{part}{pid}-{secrets.token_hex(3)}"


class Contributor:
    """Totals of a process, and the thread that posts them and renews the run's lease every third of `lease_s`."""

    def __init__(self, api: Api, run_id: str, name: str, lease_s: float | None = None) -> None:
        self._api = api
        self._path = f"/runs/{run_id}/work"
        self.name = name
        self._renew_every_s = lease_s / 3 if lease_s else None
        self._lock = threading.Lock()
        self._posting = threading.Lock()
        self._totals: dict[str, float] = {}
        self._unposted = False
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, amounts: Mapping[str, float]) -> None:
        with self._lock:
            for unit, amount in amounts.items():
                if unit not in self._totals and len(self._totals) >= MAX_UNITS:
                    log_message_once(f"cannot count work {unit}: a run has at most {MAX_UNITS} units; use fewer units")
                    continue
                self._totals[unit] = self._totals.get(unit, 0.0) + amount
            self._unposted = True
        self.start()
        self._wake.set()

    def start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._closing.clear()
                self._thread = threading.Thread(target=self._post_loop, name="wattline", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop the thread and post the rest; `add` starts it again."""
        with self._lock:
            thread, self._thread = self._thread, None
        self._closing.set()
        self._wake.set()
        if thread is not None:
            thread.join(_THREAD_ENDS_WITHIN_S)
        self.flush()

    def flush(self) -> None:
        """Try to post all work that was added so far."""
        with self._posting:
            has_unposted_work = self._unposted
        if has_unposted_work:
            self._post()

    def _post_loop(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(self._renew_every_s)
            self._wake.clear()
            if self._closing.is_set():
                return
            self._post()
            self._closing.wait(_POST_EVERY_S)

    def _post(self) -> None:
        """Post the totals. They may be posted twice; after a failure the next call posts them."""
        with self._posting:
            with self._lock:
                body = {"contributor": self.name, **self._totals} if self._totals else {}
                self._unposted = False
            try:
                self._api.post(self._path, body)
            except ExporterError as error:
                with self._lock:
                    self._unposted = bool(body)
                log_message_once(f"cannot report work: {error}")
