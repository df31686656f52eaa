"""Source that reads raw samples from Prometheus, VictoriaMetrics, Thanos, Mimir or an exporter.

The queries are `metric{…}[window]` at an instant: `query_range` resamples, and `increase` extrapolates. Results are
parsed without a Python object per sample: each `"values":[[…]]` of a compact body is cut out, its brackets and quotes
are removed, and the rest is parsed as a list of numbers. A body with another layout is parsed as JSON.
"""

from __future__ import annotations

import ipaddress
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import requests

from analyzer.model.samples import FloatArray, Series, tidy
from analyzer.sources import http as session
from analyzer.sources.base import Access, FetchError, Progress, metric_names, no_progress
from exporter.contract.metrics import Metric, escape

if TYPE_CHECKING:
    import pandas as pd

_RESULT = b'"result":['
_METRIC = b'{"metric":'
_VALUES = b',"values":[['
_END = b'"]]}'
_PUNCTUATION = b'[]"'
FIRST_CHUNK_S = 6 * 3_600.0
LONGEST_CHUNK_S = 24 * 3_600.0
SHORTEST_CHUNK_S = 60.0
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


class NotJsonError(ValueError):
    """Body that is not JSON."""


def parse_matrix(body: bytes) -> tuple[Any, list[Series]]:
    """Return the JSON document with an empty `result`, and the series of a matrix. Raises NotJsonError."""
    try:
        return parse_compact_matrix(body) or _loaded(body)
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error


def parse_compact_matrix(body: bytes) -> tuple[Any, list[Series]] | None:
    """Return as `parse_matrix`, None if the body has another layout.

    Quotes in strings are escaped, so no mark can begin or end within a label.
    """
    start = body.find(_RESULT)
    if start < 0:
        return None
    position = start + len(_RESULT)
    found: list[Series] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # text after the last number
        try:
            while body[position : position + 1] != b"]":
                one, position = _one(body, position)
                found.append(one)
            around = json.loads(body[: start + len(_RESULT)] + body[position:])
        except (ValueError, DeprecationWarning):
            return None
    data = around.get("data") if isinstance(around, dict) else None
    is_matrix = isinstance(data, dict) and data.get("resultType") == "matrix" and data.get("result") == []
    return (around, found) if is_matrix else None


def _one(body: bytes, position: int) -> tuple[Series, int]:
    """Return the series at `position` and the position after it. Raises ValueError."""
    if not body.startswith(_METRIC, position):
        raise ValueError
    values = body.index(_VALUES, position)
    end = body.index(_END, values)
    labels = json.loads(body[position + len(_METRIC) : values])
    text = body[values + len(_VALUES) : end]
    numbers = np.fromstring(text.translate(None, _PUNCTUATION), sep=",")
    pairs = text.count(b"],[") + 1
    if not isinstance(labels, dict) or len(numbers) != 2 * pairs or text.count(b'"') != 2 * pairs - 1:
        raise ValueError
    position = end + len(_END)
    if body.startswith(b",{", position):
        position += 1
    elif body[position : position + 1] != b"]":
        raise ValueError
    return (labels, numbers[::2].copy(), numbers[1::2].copy()), position


def _loaded(body: bytes) -> tuple[Any, list[Series]]:
    around = json.loads(body)
    data = around.get("data") if isinstance(around, dict) else None
    if not isinstance(data, dict) or data.get("resultType") != "matrix":
        return around, []
    try:
        found: list[Series] = [(dict(one["metric"]), *_pairs(one.get("values", []))) for one in data["result"] or []]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"invalid series: {error!r}") from error
    return {**around, "data": {**data, "result": []}}, found


def _pairs(values: list[list[Any]]) -> tuple[FloatArray, FloatArray]:
    return (
        np.array([float(t_s) for t_s, _ in values], dtype=np.float64),
        np.array([float(text) for _, text in values], dtype=np.float64),
    )


class _TooMuchError(Exception):
    """Result that the server refuses for its size; the text is the server's."""


class PrometheusSource:
    """Server of raw samples; `address` is the part before `/api/v1/query`, path included."""

    def __init__(
        self, address: str, access: Access | None = None, timeout_s: float = TIMEOUT_S, progress: Progress = no_progress
    ) -> None:
        access = access or Access()
        self._url = f"{address.rstrip('/')}/api/v1/query"
        self.name = session.server_name(address)
        self._timeout_s = timeout_s
        self._progress = progress
        self._session = session.http_session(access)
        is_local = _is_loopback(urlsplit(address).hostname or "")
        # on the same machine compression takes longer than the transfer
        self._session.headers["Accept-Encoding"] = "identity" if is_local else "gzip"

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> pd.DataFrame:
        return tidy([one for part in self.parts(metrics, matchers, start_s, end_s) for one in part])

    def parts(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> Iterator[list[Series]]:
        """Yield samples in chunks that grow while results are small and shrink while the server refuses them."""
        what, selector = metric_names(metrics), _selector(metrics, matchers)
        chunk_s, position_s = FIRST_CHUNK_S, start_s - 0.001  # a range excludes its start, in Prometheus 3 at least
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
        with session.translate_errors(self.name, self._timeout_s):
            response = self._session.get(self._url, params=parameters, timeout=self._timeout_s)
        return self._series(response)

    def _series(self, response: requests.Response) -> list[Series]:
        try:
            around, series = parse_matrix(response.content)
        except NotJsonError:
            around, series = {}, []
        if not isinstance(around, dict):
            around = {}
        reason = str(around.get("error") or around.get("detail") or "")
        if response.status_code in (401, 403):
            raise session.access_denied(self.name, response)
        if reason and response.status_code != 404 and any(mark in reason.lower() for mark in _LIMITS):
            raise _TooMuchError(reason)
        if around.get("status") != "success" or not response.ok:
            raise self._refusal(response, reason)
        self._refuse_partial(around)
        data = around.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "matrix":
            raise FetchError(f"{self.name} returned no raw samples", "check that it is Prometheus or VictoriaMetrics")
        return series

    def _refuse_partial(self, around: Mapping[str, Any]) -> None:
        """Raise FetchError for a partial result: the energy would be too low without notice."""
        if around.get("isPartial"):
            raise FetchError(f"{self.name} returned a partial result", "one of its storage nodes is down; retry later")
        warned = [str(text) for text in around.get("warnings") or [] if _HARMLESS not in str(text).lower()]
        if warned:
            text = " ".join(warned[0].split())[:300]
            raise FetchError(
                f"{self.name} returned a partial result: {text}", "one of its stores did not respond; retry later"
            )

    def _refusal(self, response: requests.Response, reason: str) -> FetchError:
        if reason and response.status_code != 404:
            text = " ".join(reason.split())[:300]
            return FetchError(f"{self.name} refused the query: {text}", "check the server's log")
        return session.not_json(self.name, response)


def _selector(metrics: Sequence[Metric], matchers: Mapping[str, str]) -> str:
    if len(metrics) == 1:
        return metrics[0].selector(**matchers)
    inner = [f'__name__=~"{"|".join(metric.name for metric in metrics)}"']
    inner += [f'{label}="{escape(text)}"' for label, text in matchers.items()]
    return f"{{{','.join(inner)}}}"


def _within(one: Series, start_s: float, end_s: float) -> Series:
    """Return the samples in (start_s, end_s]: Prometheus 2 repeats the sample at the border of two chunks."""
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
