"""Instant queries to Prometheus and VictoriaMetrics, and the text of queries for counters.

- Counter of a device: its exact increase. VictoriaMetrics' `increase` includes the sample before
  the span, so it is exact. Prometheus' `increase` extrapolates; there the query subtracts the last
  sample before the span (or the first sample of a new series) from the last one, and uses
  `increase` only for series with a reset in the span.
- Counter of a run: it starts at 0, so the query subtracts the highest value before the span from
  that in the span. `increase` would return nothing for a run that was scraped once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

import requests

from wattline.contract import metrics as m
from wattline.counters import ROLLBACK_RATIO
from wattline_analyzer.core.sources import http as session
from wattline_analyzer.core.sources.base import Access, FetchError

TIMEOUT_S = 120.0
Dialect = Literal["prometheus", "victoria-metrics"]
_REMEDY = "give --source a Prometheus or VictoriaMetrics that scrapes the nodes"
_TOO_MUCH = (
    "too many",
    "maxsamples",
    "exceeds",
    "limit",
    "too large",
    "timed out",
    "timeout",
    "deadline",
)
_ONLY_METRICSQL = "range_last(1)"
_GATEWAY_TIMEOUT = 504


class QueryTooLargeError(Exception):
    """Query that the server refuses for its size or does not finish in time; the text is the
    server's.
    """


class PromqlUnsupportedError(FetchError):
    """Address of an exporter, which serves raw samples and evaluates no PromQL."""


@dataclass(frozen=True, slots=True)
class InstantValue:
    """Value of an instant query's result with its labels."""

    labels: Mapping[str, str]
    value: float


class InstantServer:
    """Client of a server's instant queries, which counts `query_count` and `transferred_bytes`.

    `address` is the part before `/api/v1/query`. Several threads may query. The connections are
    open until `close`.
    """

    def __init__(
        self, address: str, access: Access | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.name = session.server_name(address)
        self.query_count = 0
        self.transferred_bytes = 0
        self._counting = threading.Lock()
        self._url = f"{address.rstrip('/')}/api/v1"
        self._timeout_s = timeout_s
        self._session = session.http_session(access or Access())

    def close(self) -> None:
        self._session.close()

    def dialect(self) -> Dialect:
        """Return the dialect by a MetricsQL query: the version in a response may be hidden or
        misleading.

        Raises FetchError; PromqlUnsupportedError for an exporter.
        """
        response = self._query(_ONLY_METRICSQL, 0.0)
        self._check_access(response)
        body = _body(response)
        if body.get("status") == "success":
            return "victoria-metrics"
        if body.get("errorType") == "bad_data" or "unknown function" in str(body.get("error")):
            return "prometheus"
        raise _refusal(self.name, response, body)

    def query(self, query: str, at_s: float) -> list[InstantValue]:
        """Return the result at a time. Raises FetchError; QueryTooLargeError if a smaller query may
        succeed.
        """
        response = self._query(query, at_s)
        self._check_access(response)
        body = _body(response)
        reason = str(body.get("error") or "")
        if response.status_code == _GATEWAY_TIMEOUT or any(
            mark in reason.lower() for mark in _TOO_MUCH
        ):
            raise QueryTooLargeError(reason or "HTTP 504")
        if body.get("status") != "success":
            raise _refusal(self.name, response, body)
        if body.get("isPartial"):
            raise FetchError(
                f"{self.name} returned a partial result",
                "one of its storage nodes is down; retry later",
            )
        data = body.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "vector":
            raise FetchError(
                f"{self.name} returned no vector", "check that it is Prometheus or VictoriaMetrics"
            )
        return _answers(data["result"])

    def labels(self, selector: str, start_s: float, end_s: float) -> list[str]:
        """Return the label names of the series in a time range, none if the server does not support
        it.
        """
        response = self._post(
            {"match[]": selector, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}, "labels"
        )
        self._check_access(response)
        names = _body(response).get("data")
        return sorted(map(str, names)) if isinstance(names, list) else []

    def _check_access(self, response: requests.Response) -> None:
        if response.status_code in (401, 403):
            raise session.access_denied(self.name, response)

    def _query(self, query: str, at_s: float) -> requests.Response:
        # without nocache VictoriaMetrics lags by 30 s
        return self._post({"query": query, "time": f"{at_s:.3f}", "nocache": "1"}, "query")

    def _post(self, parameters: Mapping[str, str], what: str) -> requests.Response:
        """Send a POST request: a query may be longer than a URL may be."""
        with session.translate_errors(self.name, self._timeout_s):
            try:
                response = self._session.post(
                    f"{self._url}/{what}", data=parameters, timeout=self._timeout_s
                )
            except requests.Timeout as error:
                raise QueryTooLargeError(f"no response within {self._timeout_s:.0f} s") from error
        with self._counting:
            self.query_count += 1
            self.transferred_bytes += len(response.request.body or "") + int(
                response.headers.get("Content-Length") or len(response.content)
            )
        return response


def _answers(result: Sequence[Mapping[str, Any]]) -> list[InstantValue]:
    return [InstantValue(one["metric"], float(one["value"][1])) for one in result]


def _body(response: requests.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except (json.JSONDecodeError, requests.JSONDecodeError):
        return {}
    return body if isinstance(body, dict) else {}


def _refusal(name: str, response: requests.Response, body: Mapping[str, Any]) -> FetchError:
    if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        if "GET, HEAD" in f"{body.get('error')} {body.get('detail')}":
            return PromqlUnsupportedError(f"{name} is an exporter of one node", _REMEDY)
        return FetchError(f"{name} is not a server that takes queries", _REMEDY)
    reason = " ".join(str(body.get("error") or body.get("detail") or "").split())[:300]
    if reason and response.status_code != 404:
        return FetchError(f"{name} refused the query: {reason}", _REMEDY)
    return session.not_json(name, response)


Side = Literal["until", "before"]
RUN = ("instance", "run_id")
EDGE_MS = 3_600_000
"""Maximum age of a device's last sample before an edge; after a longer gap its series counts as
new.
"""
MEMORY_MS = 10_800_000
"""Maximum age of a run's last sample before an edge."""
LATE_MS = 300_000
"""Time after a run's start from which on a first sample means that its exporter was not scraped
earlier.
"""


@dataclass(frozen=True, slots=True)
class QuerySpan:
    """Time span that ends `until_ms` before the evaluation time."""

    long_ms: int
    until_ms: int = 0

    @property
    def from_ms(self) -> int:
        return self.until_ms + self.long_ms

    @property
    def range(self) -> str:
        sign = "-" if self.until_ms < 0 else ""
        return f"[{self.long_ms}ms]" + (
            f" offset {sign}{abs(self.until_ms)}ms" if self.until_ms else ""
        )

    def halves(self) -> tuple[QuerySpan, QuerySpan]:
        late_ms = self.long_ms // 2
        return QuerySpan(self.long_ms - late_ms, self.until_ms + late_ms), QuerySpan(
            late_ms, self.until_ms
        )


@dataclass(frozen=True, slots=True)
class QueryCounter:
    """Counter with its own labels, in addition to those of a run; its samples lag by
    `behind_ms`.
    """

    name: str
    labels: tuple[str, ...]
    matchers: str = ""
    behind_ms: int = 0

    @property
    def selector(self) -> str:
        return f"{self.name}{{{self.matchers}}}"


def device_increase(counter: QueryCounter, span: QuerySpan, dialect: Dialect) -> str:
    """Return the query for the increase of a device's counter, by its labels.

    A counter that fell to most of its value before the span lost some seconds in a power cut: it is
    no restart at 0. VictoriaMetrics has the same rule.
    """
    selector = counter.selector
    increase = f"increase({selector}{span.range})"
    if dialect == "victoria-metrics":
        return max_by(counter.labels, increase)
    before = f"last_over_time({selector}{QuerySpan(EDGE_MS, span.from_ms).range})"
    newest, least = (f"{name}_over_time({selector}{span.range})" for name in ("last", "min"))
    fell = f"((resets({selector}{span.range}) > 0) or ({least} < {before}))"
    lost = f"({least} >= {ROLLBACK_RATIO} * ({before} > 0))"
    exact = f"(({newest} - ({before} or {least})) unless ({fell} unless {lost}))"
    return max_by(counter.labels, f"({exact} or {increase})")


def recorded_increase(name: str, span: QuerySpan, behind_ms: int) -> str:
    """Return the query for the sum of recorded increases; a sample at the start covers the time
    before the span.
    """
    return f"sum_over_time({name}{QuerySpan(span.long_ms - 1, span.until_ms - behind_ms).range})"


def run_counter(counter: QueryCounter, span: QuerySpan, side: Side) -> str:
    """Return the query for a run's counter at the span's end, or before the span for runs that are
    also within it.

    If a run is first scraped long after its start, or ended before the span, its first value
    belongs to the time before. That does not hold for a new counter of a run that was scraped
    before, such as tokens reported at its end.
    """
    own, behind_ms = (*RUN, *counter.labels), counter.behind_ms
    if side == "until":
        return max_by(
            own,
            f"max_over_time({counter.selector}"
            f"{QuerySpan(span.long_ms, span.until_ms - behind_ms).range})",
        )
    soon_ms = min(MEMORY_MS, span.long_ms)
    soon = QuerySpan(soon_ms, span.from_ms - soon_ms)
    within = f"{counter.selector}{QuerySpan(soon_ms, soon.until_ms - behind_ms).range}"
    before = f"{counter.selector}{QuerySpan(MEMORY_MS, span.from_ms - behind_ms).range}"
    known = (
        f"({max_by(own, f'last_over_time({before})')} and "
        f"{max_by(own, f'count_over_time({within})')})"
    )
    begun = max_by(RUN, f"max_over_time({m.RUN_START.name}{soon.range})")
    unseen = (
        f"unless on ({label_list(RUN)}) "
        f"max_over_time({m.RUN_START.name}{QuerySpan(MEMORY_MS, span.from_ms).range})"
    )
    old = f"({begun} < time() - {(span.from_ms + LATE_MS) / 1_000:.3f} {unseen})"
    ends = max_by(RUN, f"max_over_time({m.RUN_END.name}{soon.range})")
    old = f"({old} or ({ends} <= time() - {span.from_ms / 1_000:.3f}))"
    return (
        f"({known} or ({max_by(own, f'min_over_time({within})')} and on ({label_list(RUN)}) {old}))"
    )


def sum_by(labels: Sequence[str], values: str) -> str:
    return f"sum by ({label_list(labels)}) ({values})"


def max_by(labels: Sequence[str], values: str) -> str:
    return f"max by ({label_list(labels)}) ({values})"


def copy_label(values: str, new: str, old: str) -> str:
    """Return the query that copies the label `old` to `new`."""
    return f'label_replace({values}, "{new}", "$1", "{old}", "(.+)")'


def label_list(labels: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(labels))
