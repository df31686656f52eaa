"""Receiver of OTLP traces: spans become requests of runs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Protocol

from exporter.contract.metrics import OTLP_SPANS
from exporter.contract.requests.served import ServedRequest, request_error
from exporter.contract.requests.views import RequestReceipt
from exporter.energy.counter_wraps import MonotonicCounters
from exporter.model import Reading, RunError
from exporter.otlp.body import BodyError, SpanRequest, TraceBody, decode, encode_error, encode_response
from exporter.otlp.duplicates import SpanTree
from exporter.otlp.run_match import NoRunError, RunMatcher
from exporter.otlp.spans import SpanReader

MAX_WAITING = 8
"""Bodies that wait for their decoding, one at a time in a thread; a further one gets 429."""
_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _UNAVAILABLE = 3, 8, 14
_CODES = {400: _INVALID_ARGUMENT, 429: _RESOURCE_EXHAUSTED, 503: _UNAVAILABLE}
"""Codes of gRPC, by HTTP status."""
OUTCOMES = ("accepted", "ignored", "duplicate", "invalid", "refused", "no_run")
MAX_LOGGED = 100
"""Different messages about rejected spans that are logged, each one once."""

log = logging.getLogger(__name__)


class RequestSink(Protocol):
    """Receiver of requests of runs; raises RunError. See `exporter.requests.service`."""

    async def report(self, run_id: str, requests: Sequence[ServedRequest]) -> RequestReceipt: ...


class OtlpReceiver:
    """Traces of this node's LLM servers. `counters` counts their spans by outcome."""

    def __init__(self, reader: SpanReader, matcher: RunMatcher, sink: RequestSink, counters: MonotonicCounters) -> None:
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

    async def _take(self, decoded: TraceBody) -> tuple[int, str]:
        """Give the requests to their runs; return the number of rejected spans and the reasons. Raises RunError."""
        self._tree.add(decoded.links)
        redundant = self._tree.redundant([each.span for each in decoded.requests])
        counts = Counter(ignored=decoded.spans - len(decoded.requests))
        reasons: Counter[str] = Counter()
        accepted: dict[str, dict[int, ServedRequest]] = defaultdict(dict)
        for each in decoded.requests:
            if each.span in redundant:
                counts["duplicate"] += 1
            elif reason := request_error(each.request):
                counts["invalid"] += 1
                reasons[reason] += 1
            else:
                self._match(each, accepted, counts, reasons)
        for run_id, requests in accepted.items():
            try:
                receipt = await self._sink.report(run_id, list(requests.values()))
            except RunError as error:
                if error.status in _CODES:  # the sender repeats the body; counted spans are then duplicates
                    raise
                refused = {error.detail: len(requests)}
            else:
                refused = receipt.reasons
            self._tree.count(requests)
            counts["accepted"] += len(requests) - sum(refused.values())
            counts["refused"] += sum(refused.values())
            reasons.update(refused)
        for outcome, number in counts.items():
            self._counters.add(OTLP_SPANS, (outcome,), float(number))
        self._log(reasons)
        return reasons.total(), "; ".join(f"{number} spans: {reason}" for reason, number in reasons.most_common(3))

    def _match(
        self,
        each: SpanRequest,
        accepted: dict[str, dict[int, ServedRequest]],
        counts: Counter[str],
        reasons: Counter[str],
    ) -> None:
        try:
            accepted[self._matcher.find(each.request, each.resource, each.run_id)][each.span] = each.request
        except NoRunError as error:
            counts["no_run"] += 1
            reasons[str(error)] += 1

    def _log(self, reasons: Counter[str]) -> None:
        for reason in reasons:
            if reason not in self._logged and len(self._logged) < MAX_LOGGED:
                self._logged.add(reason)
                log.warning("rejected spans of requests: %s", reason)
