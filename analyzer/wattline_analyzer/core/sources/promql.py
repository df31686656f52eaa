"""Instant queries to Prometheus and VictoriaMetrics.

Each query takes one value of each series from its samples: the last, lowest or mean one, or the
number of falls. Nothing is extrapolated or joined, so that servers cannot differ.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import requests

from wattline.contract.metrics import Metric
from wattline_analyzer.core.sources import http as session
from wattline_analyzer.core.sources.base import Access, FetchError, Text
from wattline_analyzer.core.sources.prometheus import selector_text

TIMEOUT_S = 120.0
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
_GATEWAY_TIMEOUT = 504
_MOST_STEPS = 1_000
"""Number of instants of a range query."""
_SHORTEST_STEP_S = 15.0
_SHORTEST_SPAN_S = 600.0


class QueryTooLargeError(FetchError):
    """Query that the server refuses for its size or does not finish in time."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"{name} refuses a query: {reason}",
            "raise its limits (Prometheus: --query.max-samples, --query.timeout), or shorten the "
            "window",
        )


class PromqlUnsupportedError(FetchError):
    """Address of an exporter, which serves raw samples and evaluates no PromQL."""


class InstantValue(NamedTuple):
    """Value of an instant query's result with its labels."""

    labels: Mapping[str, str]
    value: float


class Presence(NamedTuple):
    """Labels of a series, and the span (s) in which it has samples, known to one step."""

    labels: Mapping[str, str]
    first_s: float
    last_s: float
    step_s: float


class InstantServer:
    """Client of a server's queries for single values.

    `address` is the part before `/api/v1/query`. Several threads may query. The connections are
    open until `close`. All methods raise FetchError; QueryTooLargeError if a smaller query may
    succeed.
    """

    def __init__(
        self, address: str, access: Access | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.name = session.server_name(address)
        self.query_count = 0
        self._counting = threading.Lock()
        self._url = f"{address.rstrip('/')}/api/v1"
        self._timeout_s = timeout_s
        self._session = session.http_session(access or Access())

    def close(self) -> None:
        self._session.close()

    def check(self) -> None:
        """Raise PromqlUnsupportedError for an exporter, FetchError for an address that is no
        server.
        """
        self.query("1", 0.0, kind="scalar")

    def newest(
        self,
        metrics: Sequence[Metric],
        matchers: Mapping[str, Text],
        at_s: float,
        reach_s: float,
    ) -> list[InstantValue]:
        """Return the last value of each series in the `reach_s` up to a time.

        If the server refuses the query, it is repeated for each half of the texts of the label
        that has most of them.
        """
        try:
            return self.query(f"last_over_time({_range(metrics, matchers, reach_s)})", at_s)
        except QueryTooLargeError:
            texts = {name: [*text] for name, text in matchers.items() if not isinstance(text, str)}
            label = max(texts, key=lambda name: len(texts[name]), default="")
            if len(texts.get(label, ())) < 2:
                raise
        middle = len(texts[label]) // 2
        return [
            row
            for half in (texts[label][:middle], texts[label][middle:])
            for row in self.newest(metrics, {**matchers, label: half}, at_s, reach_s)
        ]

    def lowest(
        self, metric: Metric, matchers: Mapping[str, Text], start_s: float, end_s: float
    ) -> list[InstantValue]:
        return self.query(f"min_over_time({_range([metric], matchers, end_s - start_s)})", end_s)

    def means(self, metric: Metric, start_s: float, end_s: float) -> list[InstantValue]:
        return self.query(f"avg_over_time({_range([metric], {}, end_s - start_s)})", end_s)

    def falls(self, metric: Metric, start_s: float, end_s: float) -> list[InstantValue]:
        """Return the number of falls of each series, in parts if the server refuses the whole."""
        try:
            return self.query(f"resets({_range([metric], {}, end_s - start_s)})", end_s)
        except QueryTooLargeError:
            if end_s - start_s < 2 * _SHORTEST_SPAN_S:
                raise
        middle_s = (start_s + end_s) / 2
        early = self.falls(metric, start_s, middle_s)
        return [*early, *self.falls(metric, middle_s - _SHORTEST_SPAN_S, end_s)]

    def presence(
        self,
        metrics: Sequence[Metric],
        matchers: Mapping[str, Text],
        start_s: float,
        end_s: float,
        labels: Sequence[str],
    ) -> list[Presence]:
        """Return the spans in which series have samples, joined by `labels`."""
        step_s = max(_SHORTEST_STEP_S, math.ceil((end_s - start_s) / _MOST_STEPS))
        values = f"last_over_time({_range(metrics, matchers, step_s)})"
        parameters = {
            "query": f"max by ({', '.join(labels)}) ({values})",
            "start": f"{start_s + step_s:.3f}",
            "end": f"{end_s + step_s:.3f}",
            "step": f"{step_s:.0f}s",
            "nocache": "1",
        }
        result = self._result(self._post(parameters, "query_range"), "matrix")
        return [
            Presence(
                one["metric"],
                float(one["values"][0][0]) - step_s,
                min(float(one["values"][-1][0]), end_s),
                step_s,
            )
            for one in result
        ]

    def query(self, query: str, at_s: float, *, kind: str = "vector") -> list[InstantValue]:
        """Return the result at a time."""
        # without nocache VictoriaMetrics lags by 30 s
        parameters = {"query": query, "time": f"{at_s:.3f}", "nocache": "1"}
        result = self._result(self._post(parameters, "query"), kind)
        return [InstantValue(one["metric"], float(one["value"][1])) for one in result]

    def _result(self, response: requests.Response, kind: str) -> list[Any]:
        self._check_access(response)
        body = _body(response)
        reason = str(body.get("error") or "")
        if response.status_code == _GATEWAY_TIMEOUT or any(
            mark in reason.lower() for mark in _TOO_MUCH
        ):
            raise QueryTooLargeError(self.name, reason or "HTTP 504")
        if body.get("status") != "success":
            raise _refusal(self.name, response, body)
        if body.get("isPartial"):
            raise FetchError(
                f"{self.name} returned a partial result",
                "one of its storage nodes is down; retry later",
            )
        data = body.get("data")
        found = data.get("resultType") if isinstance(data, dict) else None
        if kind == "scalar" and found in ("scalar", "vector"):
            return []
        if not isinstance(data, dict) or found != kind:
            raise FetchError(
                f"{self.name} returned no {kind}", "check that it is Prometheus or VictoriaMetrics"
            )
        result: list[Any] = data["result"]
        return result

    def _check_access(self, response: requests.Response) -> None:
        if response.status_code in (401, 403):
            raise session.access_denied(self.name, response)

    def _post(self, parameters: Mapping[str, str], what: str) -> requests.Response:
        """Send a POST request: a query may be longer than a URL may be."""
        with session.translate_errors(self.name, self._timeout_s):
            try:
                response = self._session.post(
                    f"{self._url}/{what}", data=parameters, timeout=self._timeout_s
                )
            except requests.Timeout as error:
                reason = f"no response within {self._timeout_s:.0f} s"
                raise QueryTooLargeError(self.name, reason) from error
        with self._counting:
            self.query_count += 1
        return response


def _range(metrics: Sequence[Metric], matchers: Mapping[str, Text], reach_s: float) -> str:
    return f"{selector_text(metrics, matchers)}[{max(round(reach_s * 1_000), 1)}ms]"


def _body(response: requests.Response) -> dict[str, Any]:
    try:
        body = json.loads(response.content)
    except (json.JSONDecodeError, UnicodeDecodeError):
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
