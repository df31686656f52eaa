"""Questions that a server answers with a few numbers: PromQL at an instant, aggregated there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import requests

from analyzer.sources import http as session
from analyzer.sources.access import Access
from analyzer.sources.error import SourceError

TIMEOUT_S = 120.0
Dialect = Literal["prometheus", "victoria-metrics"]
_TOO_MUCH = ("too many", "maxsamples", "exceeds", "limit", "too large", "timed out", "timeout", "deadline")
_ONLY_METRICSQL = "range_last(1)"
_GATEWAY_TIMEOUT = 504


class TooMuchError(Exception):
    """The server refuses a question of this size, or takes too long for it; the text is its own."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One number and the labels by which it was summed."""

    labels: Mapping[str, str]
    value: float


class InstantServer:
    """`address` is what stands before `/api/v1/query`. Holds the connection until it is closed, and counts what it
    moves: `asked` questions, `moved_bytes` of answers as they came over the line.
    """

    def __init__(self, address: str, access: Access | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self.name = session.name_of(address)
        self.asked = 0
        self.moved_bytes = 0
        self._url = f"{address.rstrip('/')}/api/v1"
        self._timeout_s = timeout_s
        self._session = session.opened(access or Access())

    def close(self) -> None:
        self._session.close()

    def dialect(self) -> Dialect:
        """What only MetricsQL knows, asked: versions are told alike by both, and a proxy may hide them."""
        response = self._query(_ONLY_METRICSQL, 0.0)
        self._let_in(response)
        body = _body(response)
        if body.get("status") == "success":
            return "victoria-metrics"
        if body.get("errorType") == "bad_data" or "unknown function" in str(body.get("error")):
            return "prometheus"
        raise _refusal(self.name, response, body)

    def ask(self, query: str, at_s: float) -> list[Answer]:
        """Raises SourceError; TooMuchError where a smaller question may be answered."""
        response = self._query(query, at_s)
        self._let_in(response)
        body = _body(response)
        reason = str(body.get("error") or "")
        if response.status_code == _GATEWAY_TIMEOUT or any(mark in reason.lower() for mark in _TOO_MUCH):
            raise TooMuchError(reason or "HTTP 504")
        if body.get("status") != "success":
            raise _refusal(self.name, response, body)
        if body.get("isPartial"):
            raise SourceError(f"{self.name} answered only in part", "a storage node of it is down; try again later")
        data = body.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "vector":
            raise SourceError(f"{self.name} did not answer with numbers", "is it Prometheus or VictoriaMetrics?")
        return _answers(data["result"])

    def labels(self, selector: str, start_s: float, end_s: float) -> list[str]:
        """The names of the labels that series of that time have; none where the server does not tell."""
        response = self._post({"match[]": selector, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}"}, "labels")
        self._let_in(response)
        names = _body(response).get("data")
        return sorted(map(str, names)) if isinstance(names, list) else []

    def _let_in(self, response: requests.Response) -> None:
        if response.status_code in (401, 403):
            raise session.locked_out(self.name, response)

    def _query(self, query: str, at_s: float) -> requests.Response:
        # without nocache VictoriaMetrics is 30 s behind
        return self._post({"query": query, "time": f"{at_s:.3f}", "nocache": "1"}, "query")

    def _post(self, parameters: Mapping[str, str], what: str) -> requests.Response:
        """By POST, since what is asked may be longer than an address may be."""
        with session.answering(self.name, self._timeout_s):
            try:
                response = self._session.post(f"{self._url}/{what}", data=parameters, timeout=self._timeout_s)
            except requests.Timeout as error:
                raise TooMuchError(f"no answer within {self._timeout_s:.0f} s") from error
        self.asked += 1
        self.moved_bytes += len(response.request.body or "") + int(
            response.headers.get("Content-Length") or len(response.content)
        )
        return response


def _answers(result: Sequence[Mapping[str, Any]]) -> list[Answer]:
    return [Answer(one["metric"], float(one["value"][1])) for one in result]


def _body(response: requests.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except (json.JSONDecodeError, requests.JSONDecodeError):
        return {}
    return body if isinstance(body, dict) else {}


def _refusal(name: str, response: requests.Response, body: Mapping[str, Any]) -> SourceError:
    reason = " ".join(str(body.get("error") or body.get("detail") or "").split())[:300]
    if reason and response.status_code != 404:
        return SourceError(
            f"{name} does not answer the fleet's questions: {reason}",
            "fleet needs a Prometheus or a VictoriaMetrics that scrapes the nodes; see --source",
        )
    return session.no_json(name, response)
