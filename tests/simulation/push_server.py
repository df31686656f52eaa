"""Push server with network faults: samples in memory, answers that fail, come late or twice, and
kills.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from tests.simulation.virtual_time import VirtualTime
from wattline_exporter.push.config import PushTarget
from wattline_exporter.push.http import PushResponse, classify_response, unreachable_response
from wattline_exporter.push.remote_write import TEXT
from wattline_exporter.storage.push_queue import PushBatch, QueuedSample

MEMORY_S = 13.0
"""Age of samples that a killed server loses."""
TARGET = PushTarget(
    "http://server:8428/api/v1/import/prometheus",
    TEXT,
    {"instance": "n"},
    15.0,
    lambda: None,
    None,
    dict,
)


@dataclass
class NetworkFault:
    """`kind` of failure of requests until a time."""

    kind: str = ""
    until_s: float = 0.0


KINDS = ("down", "timeout", "429", "500", "503", "lost answer")


class PushServer:
    """Server with all samples that it has accepted, as lines of series, value and time in
    milliseconds.
    """

    def __init__(self, virtual: VirtualTime) -> None:
        self.virtual = virtual
        self.samples: set[str] = set()
        self._recent: list[tuple[float, list[str]]] = []
        self.fault = NetworkFault()
        self.generation = 0
        """Number of restarts, each of which closes all connections."""
        self.may_lack_samples = False
        """True after the exporter's warning, as after ten kills in a row, that it does not send
        lost samples again.
        """
        self.accepted = 0
        self.drop: Callable[[int], bool] = lambda _number: False
        """A defect for the tests: acknowledge a request with this number without storing its
        samples.
        """

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note the exporter's warning that samples are not sent again; print none."""

        def note(record: logging.LogRecord) -> bool:
            self.may_lack_samples |= "loses between two pushes" in record.msg
            return False

        logger = logging.getLogger("wattline_exporter.push.server_state")
        logger.setLevel(logging.WARNING)
        logger.addFilter(note)
        try:
            yield
        finally:
            logger.removeFilter(note)
            logger.setLevel(logging.NOTSET)

    def lacks(self, line: str) -> bool:
        """Return True for an acknowledged sample that is missing without the exporter's warning."""
        return line not in self.samples and not self.may_lack_samples

    def kill(self) -> None:
        """Lose the samples of the last seconds, and close all connections."""
        self.generation += 1
        for at_s, lines in self._recent:
            if at_s > self.virtual.s - MEMORY_S:
                self.samples.difference_update(lines)
        self._recent = []

    def store(self, body: bytes) -> None:
        self.accepted += 1
        if self.drop(self.accepted):
            return
        lines = gzip.decompress(body).decode().splitlines()
        self.samples.update(lines)
        self._recent = [recent for recent in self._recent if recent[0] > self.virtual.s - 60.0]
        self._recent.append((self.virtual.s, lines))


class Connection:
    """Connection of the push client, which fails as the server's network does."""

    def __init__(self, server: PushServer, rng: random.Random) -> None:
        self._server, self._rng = server, rng
        self._generation: int | None = None

    def __call__(
        self, target: PushTarget, thread: ThreadPoolExecutor, *, timeout_s: float = 30.0
    ) -> Connection:
        del target, thread, timeout_s
        return Connection(self._server, self._rng)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._generation = None

    async def post(
        self, part: Sequence[QueuedSample], batch: PushBatch, *, may_connect: bool = True
    ) -> PushResponse:
        server, is_reused = self._server, self._generation is not None
        if is_reused and self._generation != server.generation:
            self._generation = None
            if not may_connect:
                return PushResponse("disconnected")
            is_reused = False
        if not is_reused and not may_connect:
            return PushResponse("disconnected")
        generation = server.generation
        response = await self._request(part, batch, is_reused=is_reused)
        if (
            server.generation != generation and response.kind == "accepted"
        ):  # killed before its answer arrived
            response = (
                PushResponse("disconnected")
                if is_reused
                else unreachable_response("no response", "check it")
            )
        self._generation = (
            generation if response.kind in {"accepted", "refused"} or response.from_server else None
        )
        return replace(response, loses_recent_samples=True, same_connection=is_reused)

    async def _request(
        self, part: Sequence[QueuedSample], batch: PushBatch, *, is_reused: bool
    ) -> PushResponse:
        server, kind = self._server, self._fault()
        if kind == "down":
            return (
                PushResponse("disconnected")
                if is_reused
                else unreachable_response("refused", "check it")
            )
        await asyncio.sleep(self._rng.uniform(0.001, 0.05))
        if kind == "timeout":
            await asyncio.sleep(30.0)
            return unreachable_response("no response within 30 s", "check it", reduce_batch=True)
        if kind in {"429", "500", "503"}:
            headers = {"Retry-After": str(self._rng.randint(0, 30))} if kind != "500" else {}
            return classify_response(int(kind), headers, "overloaded")
        labels = {series_id: {**of, **TARGET.labels} for series_id, of in batch.labels.items()}
        if part:
            server.store(TEXT.body(part, labels))
        if kind == "lost answer":  # the same samples come again
            return (
                PushResponse("disconnected")
                if is_reused
                else unreachable_response("closed", "check it")
            )
        await asyncio.sleep(self._rng.uniform(0.001, 0.05))
        return classify_response(204, {}, "")

    def _fault(self) -> str:
        fault = self._server.fault
        return fault.kind if self._server.virtual.s < fault.until_s else ""
