"""One client for Prometheus, VictoriaMetrics, Thanos, Mimir and an exporter's own history: they speak one dialect.

Only raw samples are asked for, `metric{…}[window]` at an instant: `query_range` resamples, and `increase` extrapolates.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests

from analyzer.model.samples import Series, tidy
from analyzer.sources import http as session
from analyzer.sources import matrix
from analyzer.sources.access import Access
from analyzer.sources.error import SourceError
from analyzer.sources.progress import Progress, named, untold
from exporter.contract.metrics import Metric, escape

if TYPE_CHECKING:
    import pandas as pd

FIRST_CHUNK_S = 6 * 3_600.0
LONGEST_CHUNK_S = 24 * 3_600.0
SHORTEST_CHUNK_S = 60.0
FEW_SAMPLES = 50_000
MANY_SAMPLES = 500_000
TIMEOUT_S = 30.0
RAW_ONLY = {
    "nocache": "1",  # VictoriaMetrics answers as of 30 s ago without it
    "partial_response": "false",  # Thanos fails where a store does, as of old Prometheus would
    "dedup": "true",  # Thanos makes one series of those of its replicas
    "max_source_resolution": "0s",  # and takes nothing that was downsampled
}
"""What the servers need to be told; each passes over what it does not know."""
_LIMITS = ("too many", "maxsamples", "exceeds", "limit", "too large")
_HARMLESS = "no storeapis matched"
"""Thanos's warning where no store has anything of that time, https://thanos.io/tip/components/query.md"""


class _TooMuchError(Exception):
    """The server refuses an answer of this size; the text is its own."""


class PrometheusSource:
    """`address` is what stands before `/api/v1/query`, path included. Holds the connection until it is closed."""

    def __init__(
        self, address: str, access: Access | None = None, timeout_s: float = TIMEOUT_S, progress: Progress = untold
    ) -> None:
        access = access or Access()
        self._url = f"{address.rstrip('/')}/api/v1/query"
        self.name = session.name_of(address)
        self._timeout_s = timeout_s
        self._progress = progress
        self._session = session.opened(access)
        near = _is_near(urlsplit(address).hostname or "")
        self._session.headers["Accept-Encoding"] = "identity" if near else "gzip"

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> pd.DataFrame:
        return tidy([one for part in self.parts(metrics, matchers, start_s, end_s) for one in part])

    def parts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> Iterator[list[Series]]:
        """In chunks that grow while answers are small and shrink while the server refuses them."""
        what, selector = named(metrics), _selector(metrics, matchers)
        chunk_s, position_s = FIRST_CHUNK_S, start_s - 0.001  # a range excludes its begin, in Prometheus 3 at least
        try:
            while position_s < end_s:
                self._progress(what, (position_s - start_s) / (end_s - start_s) if end_s > start_s else 0.0)
                until_s = min(position_s + chunk_s, end_s)
                try:
                    series = self._query(selector, position_s, until_s)
                except _TooMuchError as error:
                    chunk_s = self._smaller(chunk_s, error)
                    continue
                count = sum(len(t) for _, t, _ in series)
                if count > MANY_SAMPLES:
                    chunk_s = max(chunk_s * max(MANY_SAMPLES / count, 0.25), SHORTEST_CHUNK_S)
                elif count < FEW_SAMPLES:
                    chunk_s = min(chunk_s * 2, LONGEST_CHUNK_S)
                after_s = max(position_s, start_s - 0.0005)
                yield [one for each in series if len((one := _within(each, after_s, until_s))[1])]
                position_s = until_s
        finally:
            self._progress(what, 1.0)

    def close(self) -> None:
        self._session.close()

    def _smaller(self, chunk_s: float, error: _TooMuchError) -> float:
        if chunk_s / 4 < SHORTEST_CHUNK_S:
            raise SourceError(
                f"{self.name} refuses even {chunk_s:.0f} s of samples: {error}",
                "raise its limit (Prometheus: --query.max-samples) or ask for fewer nodes",
            ) from error
        return chunk_s / 4

    def _query(self, selector: str, start_s: float, end_s: float) -> list[Series]:
        end_ms = math.ceil(end_s * 1_000)
        parameters = {
            "query": f"{selector}[{max(end_ms - math.floor(start_s * 1_000), 1)}ms]",
            "time": f"{end_ms / 1_000:.3f}",
            **RAW_ONLY,
        }
        with session.answering(self.name, self._timeout_s):
            response = self._session.get(self._url, params=parameters, timeout=self._timeout_s)
        return self._series(response)

    def _series(self, response: requests.Response) -> list[Series]:
        try:
            around, series = matrix.parse(response.content)
        except matrix.NotJsonError:
            around, series = {}, []
        if not isinstance(around, dict):
            around = {}
        reason = str(around.get("error") or around.get("detail") or "")
        if response.status_code in (401, 403):
            raise session.locked_out(self.name, response)
        if reason and response.status_code != 404 and any(mark in reason.lower() for mark in _LIMITS):
            raise _TooMuchError(reason)
        if around.get("status") != "success" or not response.ok:
            raise self._refusal(response, reason)
        self._refuse_partial(around)
        data = around.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "matrix":
            raise SourceError(f"{self.name} did not answer with raw samples", "is it Prometheus or VictoriaMetrics?")
        return series

    def _refuse_partial(self, around: Mapping[str, Any]) -> None:
        """A part of the samples would make a part of the energy, and no one would see that."""
        if around.get("isPartial"):
            raise SourceError(f"{self.name} answered only in part", "a storage node of it is down; try again later")
        warned = [str(text) for text in around.get("warnings") or [] if _HARMLESS not in str(text).lower()]
        if warned:
            text = " ".join(warned[0].split())[:300]
            raise SourceError(
                f"{self.name} answered only in part: {text}", "a store behind it did not answer; try again later"
            )

    def _refusal(self, response: requests.Response, reason: str) -> SourceError:
        if reason and response.status_code != 404:
            text = " ".join(reason.split())[:300]
            return SourceError(f"{self.name} refused the query: {text}", "see the server's log")
        return session.no_json(self.name, response)


def _selector(metrics: Sequence[Metric], matchers: Mapping[str, str]) -> str:
    if len(metrics) == 1:
        return metrics[0].selector(**matchers)
    inner = [f'__name__=~"{"|".join(metric.name for metric in metrics)}"']
    inner += [f'{label}="{escape(text)}"' for label, text in matchers.items()]
    return f"{{{','.join(inner)}}}"


def _within(one: Series, start_s: float, end_s: float) -> Series:
    """(start_s, end_s]: Prometheus 2 repeats the sample on the border of two chunks."""
    labels, t, value = one
    if not len(t) or (t[0] > start_s and t[-1] <= end_s):
        return one
    inside = (t > start_s) & (t <= end_s)
    return labels, t[inside], value[inside]


def _is_near(host: str) -> bool:
    """On this machine packing takes longer than sending."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
