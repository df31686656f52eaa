"""Queue of served requests, posted in batches by a thread."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from wattline.client.api import RETRIED, Api, ExporterError, RejectedRequestError
from wattline.client.messages import log_message_once

MAX_QUEUED = 20_000
"""Limit of the requests that wait; further ones are dropped and counted."""
MAX_BATCH = 2_000
_POST_EVERY_S = 0.5
_BACK_OFF_S = 1.0
FLUSH_WITHIN_S = 5.0
_INVALID = (400, 413, 422)
_FIELDS = ("id", "started_at", "ended_at", "prompt_tokens", "generated_tokens")
_OPTIONAL_FIELDS = {"first_token_at": None, "cached_tokens": 0}


class RequestQueue:
    """Requests of a run that this process served. `add` never waits.

    The exporter slows the queue down with HTTP 429 and Retry-After. While it cannot be reached, the
    requests wait.
    """

    def __init__(self, api: Api, run_id: str, *, max_queued: int = MAX_QUEUED) -> None:
        self._api = api
        self._path = f"/runs/{run_id}/requests"
        self._max_queued = max_queued
        self._queued: collections.deque[Mapping[str, Any]] = collections.deque()
        self._lock = threading.Lock()
        self._posting = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        # limit of a batch: halved where one of its requests is invalid, to find that one
        self._size = MAX_BATCH
        self.dropped = 0
        """Number of requests that were not recorded."""

    def add(self, request: Mapping[str, Any]) -> None:
        with self._lock:
            if len(self._queued) >= self._max_queued:
                self.dropped += 1
                return
            self._queued.append(request)
            if self._thread is None:
                self._closing.clear()
                self._thread = threading.Thread(
                    target=self._post_loop, name="wattline-requests", daemon=True
                )
                self._thread.start()
            if len(self._queued) >= MAX_BATCH:
                self._wake.set()

    def close(self) -> None:
        """Stop the thread and post the rest; requests not accepted within a few seconds are
        dropped.
        """
        with self._lock:
            thread = self._thread
            self._thread = None
        self._closing.set()
        self._wake.set()
        if thread is not None:
            thread.join(FLUSH_WITHIN_S)
        self.flush()
        with self._lock:
            self.dropped += len(self._queued)
            self._queued.clear()

    def flush(self, timeout_s: float = FLUSH_WITHIN_S) -> None:
        """Try to post all requests that were added so far, for at most `timeout_s`."""
        give_up_s = time.monotonic() + timeout_s
        while (wait_s := self._post_batch()) is not None:
            if time.monotonic() + wait_s > give_up_s:
                return
            time.sleep(wait_s)

    def _post_loop(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(_POST_EVERY_S)
            self._wake.clear()
            while not self._closing.is_set() and (wait_s := self._post_batch()) is not None:
                self._closing.wait(wait_s)

    def _post_batch(self) -> float | None:
        """Post the oldest requests; return the seconds until the next batch, None if nothing waits.

        A batch may be posted twice: the exporter knows a request by its id.
        """
        with self._posting:
            with self._lock:
                size = min(self._size, len(self._queued))
                batch = [self._queued[at] for at in range(size)]
            if not batch:
                return None
            try:
                self._api.post(
                    self._path, {"requests": _arrays(batch) if len(batch) > 1 else batch}
                )
            except (TypeError, ValueError) as error:
                if len(batch) > 1:
                    self._size = len(batch) // 2
                    return 0.0
                log_message_once(f"cannot report a request: {error}; use finite numbers and texts")
                self._remove(batch, dropped=1)
            except RejectedRequestError as error:
                if error.status in RETRIED:
                    return _BACK_OFF_S if error.retry_after_s is None else error.retry_after_s
                if error.status in _INVALID and len(batch) > 1:
                    self._size = len(batch) // 2
                    return 0.0
                log_message_once(f"cannot report requests: {error}")
                self._remove(batch, dropped=len(batch))
            except ExporterError as error:
                log_message_once(f"cannot report requests: {error}; they wait for the exporter")
                return _BACK_OFF_S
            else:
                self._remove(batch)
                self._size = min(2 * self._size, MAX_BATCH)
            return 0.0 if self._queued else None

    def _remove(self, batch: Sequence[Mapping[str, Any]], dropped: int = 0) -> None:
        with self._lock:
            self.dropped += dropped
            for _ in batch:
                self._queued.popleft()


def _arrays(batch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return requests as an array for each field: the exporter decodes it in half of the time."""
    arrays: dict[str, Any] = {name: [each[name] for each in batch] for name in _FIELDS}
    for name, missing in _OPTIONAL_FIELDS.items():
        arrays[name] = [each.get(name, missing) for each in batch]
    sets: dict[tuple[tuple[str, str], ...], int] = {}
    label_set = [
        sets.setdefault(tuple(each.get("labels", {}).items()), len(sets)) for each in batch
    ]
    return arrays | {"labels": [dict(each) for each in sets], "label_set": label_set}
