"""Reports of the job's requests, unless their server reports them to the same exporter."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import wattline
from wattline.client.api import Api, ExporterError, is_temporary
from wattline.client.messages import log_message
from wattline.client.request_queue import CLIENT_RUN, CLIENT_RUN_LABEL, client_run_mark

_WAITS_S = (1.0, 1.0, 2.0, 3.0)
"""Times between the questions whether the server reports: exporters of traces send a batch every 5 s."""
_ALONE = 2
"""Number of the questions if no other run is open and the exporter takes no traces."""
_TRACES = "wattline_otlp_spans_total"
_MAX_IDS = 1_000
_PAGE = 10_000


def request_headers(run_id: str | None) -> dict[str, str]:
    """Return headers of a new request, by which its server can report it as one of the run.

    The middleware reads the first one. vLLM has the second one in its ids, which its plugin and its traces report.
    """
    if run_id is None:
        return {}
    return {CLIENT_RUN: run_id, "X-Request-Id": f"{client_run_mark(run_id)}{secrets.token_hex(8)}"}


class RequestReports:
    """Requests of the job. Reports wait for some seconds, until it is known whether the server reports them, too.

    Then either all of them or none are reported to the run of the job.
    """

    def __init__(self, run: wattline.Run, api: Api, waits_s: Iterable[float] = _WAITS_S) -> None:
        self._run, self._api, self._waits_s = run, api, tuple(waits_s)
        self._waiting: list[Mapping[str, Any]] | None = []
        """Requests until it is known which side reports them."""
        self._answer_ids: set[str] = set()
        self._started_at = time.time()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._server_run: str | None = None

    def add(self, answer_id: str | None, request: Mapping[str, Any]) -> None:
        """Add a request with the id of its answer."""
        if self._run.run_id is None:
            return
        with self._lock:
            if answer_id and len(self._answer_ids) < _MAX_IDS:
                self._answer_ids.add(answer_id)
            if self._waiting is not None:
                self._waiting.append(request)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._decide, name="wattline-reports", daemon=True)
                    self._thread.start()
                return
        if self._server_run is None:
            self._run.request(**request)

    def close(self) -> None:
        """Wait until it is known whether the server reports the requests; log runs that report others."""
        if self._thread is None:
            return
        self._thread.join()
        if self._server_run is None:
            self._warn()

    def _decide(self) -> None:
        self._server_run = self._find()
        if self._server_run not in (None, self._run.run_id):
            source = self._api.analyzer_source
            log_message(
                f"the server reports these requests, in run {self._server_run}: the job does not report them again; "
                f"see analyzer requests --run-id {self._run.run_id}{f' --source {source}' if source else ''}"
            )
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
            if self._server_run is None:
                for request in waiting:
                    self._run.request(**request)

    def _find(self) -> str | None:
        """Return the run in which the server reports requests of this job, None if there is none."""
        try:
            has_traces = _TRACES in self._api.metrics()
        except ExporterError:
            has_traces = False
        for number, wait_s in enumerate(self._waits_s, 1):
            time.sleep(wait_s)
            try:
                runs = self._open_runs()
                for run_id in runs:
                    if any(self._is_own(each) for each in self._requests_of(run_id)):
                        return run_id
            except ExporterError as error:
                if is_temporary(error):
                    continue
                return None
            if number >= _ALONE and len(runs) < 2 and not has_traces:
                return None
        return None

    def _open_runs(self) -> dict[str, set[str]]:
        """Return the GPUs of the open runs. Raises ExporterError."""
        runs = self._api.get_list("/runs?state=running")
        return {run["run_id"]: {gpu["uuid"] for gpu in run["gpus"]} for run in runs}

    def _requests_of(self, run_id: str) -> list[dict[str, Any]]:
        """Return requests of a run that ended during the job. Raises ExporterError."""
        page = self._api.get(f"/runs/{run_id}/requests?start={self._started_at:.3f}&limit={_PAGE}")
        return list(page["requests"])

    def _is_own(self, request: Mapping[str, Any]) -> bool:
        run_id = str(self._run.run_id)
        is_named = request["labels"].get(CLIENT_RUN_LABEL) == run_id or client_run_mark(run_id) in request["id"]
        with self._lock:
            return is_named or request["id"] in self._answer_ids

    def _warn(self) -> None:
        """Log runs that report requests on the GPUs of the run: they may be the same, with other ids."""
        try:
            runs = self._open_runs()
            gpus = runs.pop(str(self._run.run_id), set())
            others = {run_id: self._requests_of(run_id) for run_id, used in runs.items() if used & gpus}
        except ExporterError:
            return
        for run_id, requests in others.items():
            if any(map(self._is_own, requests)):
                log_message(
                    f"run {run_id} has these requests, too, since the server reported them late: both runs count them, "
                    "each with a part of the energy; start the job again"
                )
            elif requests:
                log_message(
                    f"run {run_id} reports requests on the same GPUs: if they are those of this job, both runs count "
                    "them, each with a part of the energy; stop the reports of the server (its plugin, middleware or "
                    "traces)"
                )
