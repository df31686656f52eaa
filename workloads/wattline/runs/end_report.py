"""End of a run, repeated with its time until the exporter accepts it."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from wattline.client.api import (
    ANSWER_WITHIN_S,
    ExporterError,
    JobApi,
    RejectedRequestError,
    is_temporary,
)
from wattline.client.messages import log_message, log_message_once

EXIT_WITHIN_S = 15.0
"""Longest time for which the exit of Python waits for an exporter that is away."""
RETRY_S = 1.0
_ENDS_WITHIN_S = 5.0
_REPEATS_WAIT_S = 5.0
_MISSING_ANSWERS = 3
_lock = threading.Lock()
_late: list[EndReport] = []


class EndReport:
    """End of a run at the time of its creation.

    `send_rest` posts work and requests and returns the results of the run; `take` receives the
    exporter's answer.
    """

    def __init__(
        self,
        api: JobApi,
        run_id: str,
        outcome: str,
        send_rest: Callable[[], Mapping[str, float]] = dict,
        take: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._api = api
        self._run_id = run_id
        self._outcome = outcome
        self._send_rest = send_rest
        self._take = take
        self._ended_at, self.pid = time.time(), os.getpid()
        self._posting = threading.Lock()
        self._missing = 0
        self.is_done = False
        self.error: ExporterError | None = None
        """Reason why the exporter has not accepted the end yet."""

    @property
    def is_abandoned(self) -> bool:
        """True for a run whose begin had no answer: nothing of it is shown."""
        return self._take is None

    @property
    def hangs(self) -> bool:
        return self._api.hangs

    def post_or_repeat(self) -> None:
        """Post the end; if the exporter is away, a thread repeats it."""
        if not self._api.hangs and self.post():
            return
        if not self.is_abandoned:
            cause = self.error or self._api.hang_error
            log_message_once(
                f"cannot end run {self._run_id} now: {cause}; the end is sent later, with its time"
            )
        with _lock:
            is_first = not _pending()
            _late.append(self)
        if is_first:
            threading.Thread(target=_repeat, name="wattline-ends", daemon=True).start()

    def post(self, within_s: float = ANSWER_WITHIN_S) -> bool:
        """Try to end the run, also while the exporter hangs; return True if no further attempt is
        needed.
        """
        with self._posting:
            if not self.is_done:
                try:
                    self._post(within_s)
                except ExporterError as error:
                    self.error = error
                    self.is_done = not is_temporary(error) and not self._may_still_begin(error)
                    if self.is_done and not self.is_abandoned:
                        log_message_once(f"cannot end run {self._run_id}: {error}")
            return self.is_done

    def _post(self, within_s: float) -> None:
        dataclasses.replace(self._api, timeout_s=within_s, is_persistent=True).readiness()
        results = self._send_rest()
        body: dict[str, Any] = {
            "outcome": self._outcome,
            "results": results,
            "ended_at": self._ended_at,
        }
        api = self._api.persistent(_ENDS_WITHIN_S)
        path = f"/runs/{self._run_id}/end"
        try:
            answer = api.post(path, body)
        except RejectedRequestError as error:
            if error.status != 422 or not str(error).startswith("ended_at: "):
                raise
            del body["ended_at"]  # an older exporter
            answer = api.post(path, body)
        self.is_done = True
        if self._take is not None:
            self._take(answer)

    def _may_still_begin(self, error: ExporterError) -> bool:
        self._missing += 1
        is_missing = isinstance(error, RejectedRequestError) and error.status == 404
        return self.is_abandoned and is_missing and self._missing < _MISSING_ANSWERS

    def log_loss(self) -> None:
        log_message(
            f"run {self._run_id} was not ended: {self.error}; the exporter ends it as interrupted "
            "after this process"
        )


def _pending() -> list[EndReport]:
    """Return the ends of this process that the exporter has not accepted; a forked child has none
    of its parent's.
    """
    _late[:] = [end for end in _late if not end.is_done]
    return [end for end in _late if end.pid == os.getpid()]


def _repeat() -> None:
    while True:
        time.sleep(RETRY_S)
        with _lock:
            ends = _pending()
            if not ends:
                return
        for end in ends:
            end.post(_REPEATS_WAIT_S)


def await_late_ends() -> None:
    """Repeat the ends that are late, for at most EXIT_WITHIN_S, or once while the exporter hangs;
    declare the rest.
    """
    give_up_s = time.monotonic() + EXIT_WITHIN_S
    while True:
        with _lock:
            ends = [end for end in _pending() if not end.is_abandoned]
        left = [end for end in ends if not end.post(_REPEATS_WAIT_S)]
        if not left:
            return
        if time.monotonic() + RETRY_S > give_up_s or any(end.hangs for end in left):
            break
        time.sleep(RETRY_S)
    for end in left:
        end.log_loss()
