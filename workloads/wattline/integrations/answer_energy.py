"""Energies of requests for their answers, which never wait long."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from wattline.client.api import ExporterError, RejectedRequestError

WITHIN_S = 0.5
"""Longest wait of an answer for its energy."""
PAUSE_S = 5.0
"""Time after a failure until the exporter is asked again, by the thread: no answer waits for that.
"""
PENDING_S = 1.0
"""Time for which no answer waits after one whose server has no energies yet."""
_UNKNOWN = 404


class ReportedRequests(Protocol):
    """Requests of a server. See `wattline.integrations.served_requests`."""

    @property
    def run_id(self) -> str | None: ...

    def flush(self, within_s: float) -> None:
        """Report the requests so far."""

    def energy(self, request_id: str) -> Mapping[str, Any]:
        """Return the answer of GET /api/v1/requests/ID. Raises ExporterError."""


@dataclass(frozen=True, slots=True)
class _Question:
    request_id: str
    answer: concurrent.futures.Future[Mapping[str, Any] | None] = field(
        default_factory=concurrent.futures.Future
    )


class AnswerEnergy:
    """Energies for answers. One thread reports the requests and asks the exporter for their
    energies.

    If that fails or lasts longer than `within_s`, answers get no energy until the thread has
    reached the exporter again, which it tries every `pause_s`.
    """

    def __init__(
        self,
        requests: ReportedRequests,
        within_s: float = WITHIN_S,
        pause_s: float = PAUSE_S,
        pending_s: float = PENDING_S,
    ) -> None:
        self._requests = requests
        self._within_s = within_s
        self._pause_s = pause_s
        self._pending_s = pending_s
        self._questions: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        self._failed_id: str | None = None
        """Request whose question had no answer in time."""
        self._pending_until_s = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    async def of(self, request_id: str) -> Mapping[str, Any] | None:
        """Return the energy of a request that was added, None without one; wait at most
        `within_s`.
        """
        if (
            self._requests.run_id is None
            or self._failed_id is not None
            or time.monotonic() < self._pending_until_s
        ):
            return None
        self._start()
        question = _Question(request_id)
        self._questions.put(question)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(question.answer), self._within_s)
        except TimeoutError:
            self._failed_id = request_id
            return None

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._answer_all, name="wattline-energy", daemon=True
                )
                self._thread.start()

    def _answer_all(self) -> None:
        while True:
            try:
                waiting = [self._questions.get(timeout=self._pause_s)]
            except queue.Empty:
                self._try_again()
                continue
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.append(self._questions.get_nowait())
            self._requests.flush(self._within_s)
            for question in waiting:
                if (
                    question.answer.set_running_or_notify_cancel()
                ):  # False: the answer no longer waits
                    question.answer.set_result(self._ask(question.request_id))

    def _ask(self, request_id: str) -> Mapping[str, Any] | None:
        if self._failed_id is not None or time.monotonic() < self._pending_until_s:
            return None
        try:
            energy = self._requests.energy(request_id)
        except ExporterError as error:
            if not _is_unknown(error):
                self._failed_id = request_id
            return None
        if energy.get("state") == "pending":
            self._pending_until_s = time.monotonic() + self._pending_s
        return energy if energy.get("energy_joules") is not None else None

    def _try_again(self) -> None:
        if self._failed_id is None:
            return
        try:
            self._requests.energy(self._failed_id)
        except ExporterError as error:
            if not _is_unknown(error):
                return
        self._failed_id = None


def _is_unknown(error: ExporterError) -> bool:
    """Return True if the exporter answered that it does not know the request, as one that it did
    not accept.
    """
    return isinstance(error, RejectedRequestError) and error.status == _UNKNOWN
