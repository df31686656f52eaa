"""One client for Prometheus, VictoriaMetrics and an exporter's own history: they speak one dialect.

Only raw samples are asked for, `metric{…}[window]` at an instant: `query_range` resamples, and `increase` extrapolates.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import requests
from requests.auth import AuthBase

from analyzer.series import tidy
from analyzer.sources.access import Access
from analyzer.sources.error import SourceError
from exporter.contract.metrics import Metric, escape

FIRST_CHUNK_S = 6 * 3_600.0
LONGEST_CHUNK_S = 24 * 3_600.0
SHORTEST_CHUNK_S = 60.0
FEW_SAMPLES = 50_000
MANY_SAMPLES = 500_000
TIMEOUT_S = 30.0
_LIMITS = ("too many", "maxsamples", "exceeds", "limit", "too large")

_Series = list[dict[str, Any]]


class _TooMuchError(Exception):
    """The server refuses an answer of this size; the text is its own."""


class _Bearer(AuthBase):
    """A header alone would lose against ~/.netrc."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, r: requests.PreparedRequest) -> requests.PreparedRequest:
        r.headers["Authorization"] = f"Bearer {self._token}"
        return r


class PrometheusSource:
    """`address` is what stands before `/api/v1/query`, path included. Holds the connection until it is closed."""

    def __init__(self, address: str, access: Access | None = None, timeout_s: float = TIMEOUT_S) -> None:
        access = access or Access()
        self._url = f"{address.rstrip('/')}/api/v1/query"
        parts = urlsplit(address)
        port = f":{parts.port}" if parts.port else ""
        self.name = f"{parts.scheme}://{parts.hostname}{port}{parts.path.rstrip('/')}"
        self._timeout_s = timeout_s
        self._session = requests.Session()
        self._session.headers.update(access.headers)
        if access.basic_auth:
            self._session.auth = access.basic_auth
        if access.bearer_token:
            self._session.auth = _Bearer(access.bearer_token)
        if access.ca_file:
            self._session.verify = str(access.ca_file)

    def fetch(
        self, metrics: Sequence[Metric], matchers: Mapping[str, str], start_s: float, end_s: float
    ) -> pd.DataFrame:
        """In chunks that grow while answers are small and shrink while the server refuses them."""
        selector = _selector(metrics, matchers)
        frames = [tidy([]), *(_frame(series) for series in self._chunks(selector, start_s, end_s))]
        frame = pd.concat([part for part in frames if len(part)] or frames[:1], ignore_index=True)
        texts = [name for name in frame.columns if name not in ("t", "value")]
        frame[texts] = frame[texts].fillna("")
        frame = frame[(frame["t"] >= start_s) & (frame["t"] <= end_s)]
        return frame.drop_duplicates(["t", *texts]).reset_index(drop=True)

    def close(self) -> None:
        self._session.close()

    def _chunks(self, selector: str, start_s: float, end_s: float) -> Iterator[_Series]:
        chunk_s, position_s = FIRST_CHUNK_S, start_s - 0.001  # a range excludes its begin, in Prometheus 3 at least
        while position_s < end_s:
            until_s = min(position_s + chunk_s, end_s)
            try:
                series = self._query(selector, position_s, until_s)
            except _TooMuchError as error:
                chunk_s /= 4
                if chunk_s < SHORTEST_CHUNK_S:
                    raise SourceError(
                        f"{self.name} refuses even {4 * chunk_s:.0f} s of samples: {error}",
                        "raise its limit (Prometheus: --query.max-samples) or ask for fewer nodes",
                    ) from error
                continue
            count = sum(len(one["values"]) for one in series)
            if count > MANY_SAMPLES:
                chunk_s = max(chunk_s / 2, SHORTEST_CHUNK_S)
            elif count < FEW_SAMPLES:
                chunk_s = min(chunk_s * 2, LONGEST_CHUNK_S)
            yield series
            position_s = until_s

    def _query(self, selector: str, start_s: float, end_s: float) -> _Series:
        end_ms = math.ceil(end_s * 1_000)
        parameters = {
            "query": f"{selector}[{max(end_ms - math.floor(start_s * 1_000), 1)}ms]",
            "time": f"{end_ms / 1_000:.3f}",
            "nocache": "1",  # VictoriaMetrics answers as of 30 s ago without it
        }
        try:
            response = self._session.get(self._url, params=parameters, timeout=self._timeout_s)
        except requests.exceptions.SSLError as error:
            raise SourceError(
                f"{self.name} has a certificate that is not trusted here",
                "give --ca-file the authority that signed it, or use http:// where the server speaks no TLS",
            ) from error
        except requests.Timeout as error:
            raise SourceError(
                f"no answer from {self.name} within {self._timeout_s:.0f} s", "is it overloaded, or a firewall between?"
            ) from error
        except requests.ConnectionError as error:
            raise SourceError(
                f"cannot reach {self.name}", "is it running, and is the address right? see --source"
            ) from error
        except (requests.RequestException, ValueError) as error:
            raise SourceError(f"{self.name} is no address to read from: {error}", "see --source") from error
        return self._series(response)

    def _series(self, response: requests.Response) -> _Series:
        try:
            body = response.json()
        except (json.JSONDecodeError, requests.JSONDecodeError):
            body = None
        if not isinstance(body, dict):
            body = {}
        reason = str(body.get("error") or body.get("detail") or "")
        if response.status_code in (401, 403):
            raise SourceError(
                f"{self.name} does not let us in (HTTP {response.status_code})",
                "give --basic-auth USER:PASSWORD-FILE, --bearer-token-file or --header",
            )
        if reason and response.status_code != 404 and any(mark in reason.lower() for mark in _LIMITS):
            raise _TooMuchError(reason)
        if body.get("status") != "success" or not response.ok:
            raise self._refusal(response, reason)
        if body.get("isPartial"):
            raise SourceError(f"{self.name} answered only in part", "a storage node of it is down; try again later")
        data = body.get("data")
        if not isinstance(data, dict) or data.get("resultType") != "matrix":
            raise SourceError(f"{self.name} did not answer with raw samples", "is it Prometheus or VictoriaMetrics?")
        result: _Series = data["result"]
        return result

    def _refusal(self, response: requests.Response, reason: str) -> SourceError:
        if reason and response.status_code != 404:
            text = " ".join(reason.split())[:300]
            return SourceError(f"{self.name} refused the query: {text}", "see the server's log")
        kind = response.headers.get("Content-Type", "nothing").partition(";")[0]
        return SourceError(
            f"{self.name} answered HTTP {response.status_code} with {kind}, not with Prometheus's JSON",
            "is its path missing? a VictoriaMetrics cluster wants …/select/0/prometheus",
        )


def _selector(metrics: Sequence[Metric], matchers: Mapping[str, str]) -> str:
    if len(metrics) == 1:
        return metrics[0].selector(**matchers)
    inner = [f'__name__=~"{"|".join(metric.name for metric in metrics)}"']
    inner += [f'{label}="{escape(text)}"' for label, text in matchers.items()]
    return f"{{{','.join(inner)}}}"


def _frame(series: _Series) -> pd.DataFrame:
    """NaN, as which VictoriaMetrics hands out stale markers, is dropped with all that is not finite."""
    parts = []
    for one in series:
        t = np.array([pair[0] for pair in one["values"]], dtype=np.float64)
        value = np.array([float(pair[1]) for pair in one["values"]], dtype=np.float64)
        parts.append((one["metric"], t, value))
    return tidy(parts)
