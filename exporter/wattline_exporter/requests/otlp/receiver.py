"""Receiver of OTLP traces: spans become requests of runs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import compress
from typing import TYPE_CHECKING, Protocol

from wattline.contract.metrics import OTLP_SPANS
from wattline_exporter.requests.intake import REASONS
from wattline_exporter.requests.otlp.body import (
    BodyError,
    TraceBody,
    decode,
    encode_error,
    encode_response,
)
from wattline_exporter.requests.otlp.duplicates import SpanTree
from wattline_exporter.requests.otlp.limits import request_errors
from wattline_exporter.requests.otlp.run_match import RunMatcher
from wattline_exporter.requests.otlp.spans import SpanReader
from wattline_exporter.requests.views import RequestReceipt
from wattline_exporter.sensors.exported_counters import ExportedCounters
from wattline_exporter.sensors.readings import Reading, RunError

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.arrays import Mask
    from wattline_exporter.requests.division.columns import RequestColumns

MAX_WAITING = 8
"""Bodies that wait for their decoding, one at a time in a thread; a further one gets 429."""
_INVALID_ARGUMENT = 3
_RESOURCE_EXHAUSTED = 8
_UNAVAILABLE = 14
_CODES = {400: _INVALID_ARGUMENT, 429: _RESOURCE_EXHAUSTED, 503: _UNAVAILABLE}
"""Codes of gRPC, by HTTP status."""
OUTCOMES = ("accepted", "ignored", "duplicate", "invalid", "refused", "no_run")
MAX_LOGGED = 100
"""Different messages about rejected spans that are logged, each one once."""

REPEATED = REASONS["duplicate"]
"""Reason for a request with the id of an earlier one: it counts once, and no energy is missing."""

log = logging.getLogger(__name__)


class RequestSink(Protocol):
    """Receiver of requests of runs; raises RunError. See `wattline_exporter.requests.service`."""

    async def report_columns(self, run_id: str, requests: RequestColumns) -> RequestReceipt: ...


class OtlpReceiver:
    """Traces of this node's LLM servers. `counters` counts their spans by outcome."""

    def __init__(
        self,
        reader: SpanReader,
        matcher: RunMatcher,
        sink: RequestSink,
        counters: ExportedCounters,
    ) -> None:
        self._reader = reader
        self._matcher = matcher
        self._sink = sink
        self._counters = counters
        self._tree = SpanTree()
        self._decoding = asyncio.Lock()
        self._waiting = 0
        self._logged: set[str] = set()
        for outcome in OUTCOMES:
            counters.add(OTLP_SPANS, (outcome,), 0.0)

    async def receive(self, body: bytes, *, is_json: bool) -> bytes:
        """Take a trace request and return the body of the response. Raises RunError."""
        if self._waiting >= MAX_WAITING:
            raise RunError(429, f"{MAX_WAITING} trace requests are waiting; send again later", 1)
        self._waiting += 1
        try:
            async with self._decoding:
                decoded = await asyncio.to_thread(decode, body, self._reader, is_json=is_json)
                rejected, message = await self._take(decoded)
        except BodyError as error:
            raise RunError(400, str(error)) from error
        finally:
            self._waiting -= 1
        return encode_response(rejected, message, is_json=is_json)

    def encode_error(self, status: int, detail: str, *, is_json: bool) -> bytes:
        return encode_error(_CODES.get(status, _INVALID_ARGUMENT), detail, is_json=is_json)

    def readings(self) -> Iterator[Reading]:
        yield from self._counters.readings(OTLP_SPANS)

    async def _take(self, body: TraceBody) -> tuple[int, str]:
        """Give the requests to their runs; return the number of rejected spans and the reasons.
        Raises RunError.
        """
        self._tree.add(body.links)
        counts = Counter(ignored=body.spans - len(body.requests))
        reasons = Counter[str]()
        for run_id, chosen in self._by_run(body, counts, reasons).items():
            is_all = chosen.all()
            spans = list(compress(body.span_ids, chosen))
            try:
                receipt = await self._sink.report_columns(
                    run_id, body.requests if is_all else body.requests.take(chosen)
                )
            except RunError as error:
                if (
                    error.status in _CODES
                ):  # the sender repeats the body; counted spans are then duplicates
                    raise
                duplicates = 0
                refused = {error.detail: len(spans)}
            else:
                duplicates = receipt.duplicate
                refused = {
                    reason: count for reason, count in receipt.reasons.items() if reason != REPEATED
                }
            self._tree.count(spans)
            not_taken = sum(refused.values())
            accepted = len(spans) - not_taken - duplicates
            self._count({"accepted": accepted, "duplicate": duplicates, "refused": not_taken})
            reasons.update(refused)
        self._count(counts)
        self._log(reasons)
        return reasons.total(), "; ".join(
            f"{number} of the spans: {reason}" for reason, number in reasons.most_common(3)
        )

    def _by_run(
        self, body: TraceBody, counts: Counter[str], reasons: Counter[str]
    ) -> dict[str, Mask]:
        """Return the masks of the requests of each run; count the others, and their reasons."""
        import numpy as np

        if not len(body.requests):
            return {}
        left = self._counting(body.span_ids)
        counts["duplicate"] += len(left) - int(np.count_nonzero(left))
        for position, reason in request_errors(body.requests, left):
            left[position] = False
            counts["invalid"] += 1
            reasons[reason] += 1
        found: dict[str, Mask] = {}
        source_of = np.array(body.source_of)
        for number, source in enumerate(body.sources):
            own = np.flatnonzero(left & (source_of == number))
            times = body.requests.started_at[own], body.requests.ended_at[own]
            for run, group in self._matcher.groups(*times, source):
                if isinstance(run, str):
                    found.setdefault(run, np.zeros(len(left), dtype=bool))[own[group]] = True
                else:
                    count = int(np.count_nonzero(group))
                    counts["no_run"] += count
                    reasons[str(run)] += count
        return found

    def _counting(self, span_ids: list[int]) -> Mask:
        """Return the mask of spans whose requests no other span describes as well, each id once."""
        import numpy as np

        redundant = self._tree.redundant(span_ids)
        mask = np.ones(len(span_ids), dtype=bool)
        if redundant or len(set(span_ids)) < len(span_ids):
            for position, span_id in enumerate(span_ids):
                mask[position] = span_id not in redundant
                redundant.add(span_id)
        return mask

    def _count(self, spans: Mapping[str, int]) -> None:
        for outcome, number in spans.items():
            self._counters.add(OTLP_SPANS, (outcome,), float(number))

    def _log(self, reasons: Counter[str]) -> None:
        for reason in reasons:
            if reason not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(reason)
                log.warning("rejected spans of requests: %s", reason)
