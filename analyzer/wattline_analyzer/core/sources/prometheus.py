"""Source that reads raw samples from Prometheus, VictoriaMetrics, Thanos, Mimir or an exporter.

The queries are `metric{…}[window]` at an instant: `query_range` resamples, and `increase`
extrapolates.
"""

from __future__ import annotations

import ipaddress
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import requests

from wattline.contract.metrics import Metric, escape
from wattline_analyzer.core.facts import Fact, newest_facts
from wattline_analyzer.core.sample_table import SampleTable, table_of
from wattline_analyzer.core.samples import Series
from wattline_analyzer.core.sources import http as session
from wattline_analyzer.core.sources.base import (
    Access,
    FetchError,
    Progress,
    Text,
    metric_names,
    no_progress,
)
from wattline_analyzer.core.sources.prometheus_matrix import NotJsonError, parse_matrix

FIRST_CHUNK_S = 6 * 3_600.0
LONGEST_CHUNK_S = 48 * 3_600.0
SHORTEST_CHUNK_S = 60.0
_GROWTH = 4
FEW_SAMPLES = 50_000
MANY_SAMPLES = 500_000
TIMEOUT_S = 30.0
RAW_ONLY = {
    "nocache": "1",  # without it VictoriaMetrics lags by 30 s
    "partial_response": "false",  # Thanos fails if one of its stores does
    "dedup": "true",  # Thanos merges the series of its replicas
    "max_source_resolution": "0s",  # Thanos leaves out downsampled data
}
"""Parameters for exact results; each server ignores those that it does not know."""
_LIMITS = ("too many", "maxsamples", "exceeds", "limit", "too large")
_HARMLESS = "no storeapis matched"
"""Thanos's warning if no store has data of that time, https://thanos.io/tip/components/query.md"""


_Range = tuple[str, float, float]
"""Selector, start and end of a query."""
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$]")
"""Characters with a meaning in the regular expressions of a matcher."""


class _TooMuchError(Exception):
    """Result that the server refuses for its size; the text is the server's."""


class PrometheusSource:
    """Server of raw samples; `address` is the part before `/api/v1/query`, path included."""

    def __init__(
        self,
        address: str,
        access: Access | None = None,
        timeout_s: float = TIMEOUT_S,
        progress: Progress = no_progress,
    ) -> None:
        access = access or Access()
        self.address = address.rstrip("/")
        self.access = access
        self.name = session.server_name(address)
        self._timeout_s = timeout_s
        self._progress = progress
        self._session = session.http_session(access)
        self._free = threading.Semaphore(session.CONNECTIONS)
        self._started: dict[_Range, Future[list[Series]]] = {}
        is_local = _is_loopback(urlsplit(address).hostname or "")
        # on the same machine compression takes longer than the transfer
        self._session.headers["Accept-Encoding"] = "identity" if is_local else "gzip"

    def facts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> list[Fact]:
        return newest_facts(metrics, self.parts(metrics, matchers, start_s, end_s))

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> SampleTable:
        return table_of(
            [one for part in self.parts(metrics, matchers, start_s, end_s) for one in part]
        )

    def parts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> Iterator[list[Series]]:
        """Yield samples in chunks that grow while results are small and shrink while the server
        refuses them.

        While results are small, the next chunks are requested at the same time.
        """
        what = metric_names(metrics)
        selector = selector_text(metrics, matchers)
        chunk_s = FIRST_CHUNK_S
        position_s = _before(start_s)
        ahead: set[_Range] = set()
        try:
            while position_s < end_s:
                self._progress(
                    what, (position_s - start_s) / (end_s - start_s) if end_s > start_s else 0.0
                )
                until_s = min(position_s + chunk_s, end_s)
                try:
                    series = self._result((selector, position_s, until_s))
                except _TooMuchError as error:
                    chunk_s = self._smaller(chunk_s, error)
                    continue
                count = sum(len(t) for _, t, _ in series)
                if count > MANY_SAMPLES:
                    chunk_s = max(chunk_s * max(MANY_SAMPLES / count, 0.25), SHORTEST_CHUNK_S)
                elif count < FEW_SAMPLES:
                    chunk_s = min(chunk_s * _GROWTH, LONGEST_CHUNK_S)
                    ahead |= self._start(list(_next_ranges(selector, until_s, end_s, chunk_s)))
                after_s = max(position_s, start_s - 0.0005)
                yield [one for each in series if len((one := _within(each, after_s, until_s))[1])]
                position_s = until_s
        finally:
            for unused in ahead:
                self._cancel(unused)
            self._progress(what, 1.0)

    def prefetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> None:
        """Request the first part now, at the same time as others; the other methods with these
        arguments use it.
        """
        if _before(start_s) < end_s:
            self._start(
                [
                    next(
                        _next_ranges(
                            selector_text(metrics, matchers), _before(start_s), end_s, FIRST_CHUNK_S
                        )
                    )
                ]
            )

    def close(self) -> None:
        for unused in list(self._started):
            self._cancel(unused)
        self._session.close()

    def _start(self, ranges: Sequence[_Range]) -> set[_Range]:
        """Query ranges in other threads; they do not keep the process alive. Return the new
        ones.
        """
        new = [one for one in ranges if one not in self._started]
        for one in new:
            self._started[one] = session.start_request(self._free, partial(self._query, *one))
        return set(new)

    def _cancel(self, one: _Range) -> None:
        future = self._started.pop(one, None)
        if future:
            future.cancel()

    def _result(self, one: _Range) -> list[Series]:
        future = self._started.pop(one, None)
        return future.result() if future else self._query(*one)

    def _smaller(self, chunk_s: float, error: _TooMuchError) -> float:
        if chunk_s / 4 < SHORTEST_CHUNK_S:
            raise FetchError(
                f"{self.name} refuses even {chunk_s:.0f} s of samples: {error}",
                "raise its limit (Prometheus: --query.max-samples) or select fewer nodes",
            ) from error
        return chunk_s / 4

    def _query(self, selector: str, start_s: float, end_s: float) -> list[Series]:
        end_ms = math.ceil(end_s * 1_000)
        parameters = {
            "query": f"{selector}[{max(end_ms - math.floor(start_s * 1_000), 1)}ms]",
            "time": f"{end_ms / 1_000:.3f}",
            **RAW_ONLY,
        }
        return self._series(self.get("/api/v1/query", parameters))

    def get(self, path: str, parameters: Mapping[str, str]) -> requests.Response:
        """Return the server's response, also one with an error. Raises FetchError for none, and
        without access.
        """
        with session.translate_errors(self.name, self._timeout_s):
            response = self._session.get(
                self.address + path, params=parameters, timeout=self._timeout_s
            )
        if response.status_code in (401, 403):
            raise session.access_denied(self.name, response)
        return response

    def _series(self, response: requests.Response) -> list[Series]:
        try:
            around, series = parse_matrix(response.content)
        except NotJsonError:
            around = {}
            series = []
        if not isinstance(around, dict):
            around = {}
        reason = str(around.get("error") or around.get("detail") or "")
        if (
            reason
            and response.status_code != 404
            and any(mark in reason.lower() for mark in _LIMITS)
        ):
            raise _TooMuchError(reason)
        if around.get("status") != "success" or not response.ok:
            raise self._refusal(response, reason)
        self._refuse_partial(around)
        data = around.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "matrix":
            raise FetchError(
                f"{self.name} returned no raw samples",
                "check that it is Prometheus or VictoriaMetrics",
            )
        return series

    def _refuse_partial(self, around: Mapping[str, Any]) -> None:
        """Raise FetchError for a partial result: the energy would be too low without notice."""
        if around.get("isPartial"):
            raise FetchError(
                f"{self.name} returned a partial result",
                "one of its storage nodes is down; retry later",
            )
        warned = [
            str(text) for text in around.get("warnings") or [] if _HARMLESS not in str(text).lower()
        ]
        if warned:
            text = " ".join(warned[0].split())[:300]
            raise FetchError(
                f"{self.name} returned a partial result: {text}",
                "one of its stores did not respond; retry later",
            )

    def _refusal(self, response: requests.Response, reason: str) -> FetchError:
        if reason and response.status_code != 404:
            text = " ".join(reason.split())[:300]
            return FetchError(f"{self.name} refused the query: {text}", "check the server's log")
        return session.not_json(self.name, response)


def _before(start_s: float) -> float:
    """Return a time just before the start of a range, which servers exclude, Prometheus 3 at
    least.
    """
    return start_s - 0.001


def _next_ranges(
    selector: str, position_s: float, end_s: float, chunk_s: float
) -> Iterator[_Range]:
    """Yield the ranges that follow if all results are small, as many as are requested at the same
    time.
    """
    for _ in range(session.CONNECTIONS):
        if position_s >= end_s:
            return
        until_s = min(position_s + chunk_s, end_s)
        yield selector, position_s, until_s
        position_s = until_s
        chunk_s = min(chunk_s * _GROWTH, LONGEST_CHUNK_S)


def selector_text(metrics: Sequence[Metric], matchers: Mapping[str, Text]) -> str:
    """Return the selector of all series of the metrics whose labels have the given texts."""
    names = "|".join(metric.name for metric in metrics)
    inner = [f'__name__=~"{names}"'] if len(metrics) > 1 else []
    for label, text in matchers.items():
        if isinstance(text, str):
            inner.append(f'{label}="{escape(text)}"')
        else:
            pattern = "|".join(_SPECIAL.sub(r"\\\g<0>", one) for one in sorted(text))
            inner.append(f'{label}=~"{escape(pattern)}"')
    name = metrics[0].name if len(metrics) == 1 else ""
    return f"{name}{{{','.join(inner)}}}" if inner else name


def _within(one: Series, start_s: float, end_s: float) -> Series:
    """Return the samples in (start_s, end_s]: Prometheus 2 repeats the sample at the border of two
    chunks.
    """
    labels, t, value = one
    if not len(t) or (t[0] > start_s and t[-1] <= end_s):
        return one
    inside = (t > start_s) & (t <= end_s)
    return labels, t[inside], value[inside]


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
