"""Reports of the job's requests, except those that their server reports to the same exporter."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import wattline
from wattline.client.api import Api, ExporterError, is_temporary
from wattline.client.messages import log_message
from wattline.contract.requests.served import (
    CLIENT_RUN_HEADER,
    CLIENT_RUN_LABEL,
    client_run_mark,
)

_TRACES = "wattline_otlp_spans_total"
_MAX_SENT = 10_000
_PAGE = 10_000
_SAME_S = 1.0
"""Largest difference between the ends of a request at its client and at its server."""
_LONG_ID = 16
"""Length of an answer's id from which on no other server has the same one, unlike a number."""
_FEW = 0.1
"""Part of the requests that the job may report itself although their server reports requests."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Times in seconds: between two questions to the exporter, and for which a request waits for
    its server's report.

    Exporters of traces send a batch every 5 s. Without traces and other open runs, only a server in
    the job's own run may report.
    """

    every_s: float = 1.0
    held_s: float = 7.0
    alone_s: float = 2.0


class _Held(NamedTuple):
    """A request that waits, with the key of its answer's id."""

    key: str | None
    request: Mapping[str, Any]

    @property
    def ended_at(self) -> float:
        return float(self.request["ended_at"])

    def equals(self, reported: Mapping[str, Any]) -> bool:
        """Return True if the server's report has the same end and tokens."""
        names = "prompt_tokens", "generated_tokens"
        is_near = abs(reported["ended_at"] - self.ended_at) <= _SAME_S
        return is_near and all(reported[name] == self.request[name] for name in names)


def request_headers(run_id: str | None) -> dict[str, str]:
    """Return headers of a new request, by which its server can report it as one of the run.

    The middleware reads the first one. vLLM has the second one in its ids, which its plugin and its
    traces report.
    """
    if run_id is None:
        return {}
    return {
        CLIENT_RUN_HEADER: run_id,
        "X-Request-Id": f"{client_run_mark(run_id)}{secrets.token_hex(8)}",
    }


class RequestReports:
    """Requests of the job. Each one waits for some seconds, and is reported unless its server has
    reported it.

    If the server has reported none of the first ones, the others do not wait.
    """

    def __init__(
        self, run: wattline.ActiveRun, api: Api, waits: Waits = Waits()
    ) -> None:  # it is frozen
        self._run = run
        self._api = api
        self._waits = waits
        self._held: list[_Held] = []
        self._is_direct = run.run_id is None
        """True if requests are reported without waiting."""
        self._sent: set[str] = set()
        """Keys of requests that the job reported."""
        self._taken: set[tuple[str, str]] = set()
        """Latest reports of servers that belong to a request of the job, by run and id."""
        self._server_runs: dict[str, None] = {}
        """Runs in which servers reported requests of the job."""
        self._own_reports = self._server_reports = 0
        """Requests that the job and servers reported."""
        self._started_at = time.time()
        self._has_traces: bool | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, answer_id: str | None, request: Mapping[str, Any]) -> None:
        """Add a request with the id of its answer."""
        held = _Held(None if answer_id is None else self._key(answer_id), request)
        with self._lock:
            if not self._is_direct:
                self._held.append(held)
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._settle, name="wattline-reports", daemon=True
                    )
                    self._thread.start()
                return
        if self._run.run_id is not None:
            self._report(held)

    def close(self) -> None:
        """Wait until it is known which requests the servers report; log runs that may count
        requests again.
        """
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._warn()

    def _report(self, held: _Held) -> None:
        if held.key and len(self._sent) < _MAX_SENT:
            self._sent.add(held.key)
        self._own_reports += 1
        self._run.request(**held.request)

    def _settle(self) -> None:
        """Leave out requests that servers report, and report the others."""
        while not (self._closing.is_set() and not self._held):
            time.sleep(self._waits.every_s)
            try:
                held_s = (
                    self._waits.alone_s if self._is_alone(self._leave_out()) else self._waits.held_s
                )
            except ExporterError as error:
                held_s = self._waits.held_s if is_temporary(error) else 0.0
            self._report_older(time.time() - held_s)

    def _report_older(self, than: float) -> None:
        """Report the requests that have waited long enough, all of them if no server reports
        any.
        """
        with self._lock:
            due = [each for each in self._held if each.ended_at <= than]
            if due and not self._server_runs:
                due = self._held
                self._is_direct = True
            self._held = (
                [] if self._is_direct else [each for each in self._held if each.ended_at > than]
            )
            for each in due:
                self._report(each)
        if self._is_direct:
            self._closing.set()  # the thread ends

    def _leave_out(self) -> int:
        """Forget held requests that servers report; return the number of open runs. Raises
        ExporterError.
        """
        with self._lock:
            since_at = min([time.time(), *(each.ended_at for each in self._held)]) - _SAME_S
        runs = self._open_runs()
        taken = set[tuple[str, str]]()
        for run_id, gpus in runs.items():
            for reported in self._requests_of(run_id, since_at) if gpus else ():
                if (name := (run_id, reported["id"])) in self._taken or self._take(
                    reported, run_id, runs
                ):
                    taken.add(name)
        self._taken = taken
        return len(runs)

    def _take(self, reported: Mapping[str, Any], run_id: str, runs: Mapping[str, set[str]]) -> bool:
        """Forget the held request that a server reported; return whether there is one."""
        key = self._key(reported["id"])
        is_named = self._is_named(reported)
        with self._lock:
            is_same = is_named or len(key) >= _LONG_ID  # a proxy may have removed the headers
            found = [
                each
                for each in self._held
                if is_same and each.key == key and (is_named or each.equals(reported))
            ]
            if (
                not found and is_named and key not in self._sent
            ):  # a gateway may give the answer another id
                found = [each for each in self._held if each.equals(reported)]
            if not found:
                return False
            self._held.remove(
                min(found, key=lambda each: abs(each.ended_at - reported["ended_at"]))
            )
        self._server_reports += 1
        if run_id not in self._server_runs:
            self._server_runs[run_id] = None
            if run_id != self._run.run_id:
                self._log_server(
                    run_id, is_named and bool(runs[run_id] & runs.get(str(self._run.run_id), set()))
                )
        return True

    def _log_server(self, run_id: str, is_found: bool) -> None:
        """Log the run of a server; `is_found`: the analyzer finds its requests by the run of the
        job.
        """
        source = self._api.analyzer_source
        log_message(
            f"the server reports these requests, in run {run_id}: the job does not report them "
            "again; see analyzer "
            "requests --run-id "
            f"{self._run.run_id if is_found else run_id}{f' --source {source}' if source else ''}"
        )

    def _is_alone(self, open_runs: int) -> bool:
        if self._has_traces is None:
            self._has_traces = _TRACES in self._api.metrics()
        return open_runs < 2 and not self._has_traces

    def _open_runs(self) -> dict[str, set[str]]:
        """Return the GPUs of the open runs. Raises ExporterError."""
        runs = self._api.get_list("/runs?state=running")
        return {run["run_id"]: {gpu["uuid"] for gpu in run["gpus"]} for run in runs}

    def _requests_of(self, run_id: str, since_at: float) -> list[dict[str, Any]]:
        """Return requests of a run that ended since an instant. Raises ExporterError."""
        found = list[dict[str, Any]]()
        after = ""
        while True:
            page = self._api.get(
                f"/runs/{run_id}/requests?start={since_at:.3f}&limit={_PAGE}{after}"
            )
            found += page["requests"]
            if not page["next"]:
                return found
            after = f"&after={page['next']}"

    def _key(self, request_id: str) -> str:
        """Return the part of an id that client and server have in common."""
        _, mark, rest = request_id.partition(client_run_mark(str(self._run.run_id)))
        return rest[:16] if mark else request_id

    def _is_named(self, reported: Mapping[str, Any]) -> bool:
        run_id = str(self._run.run_id)
        return (
            reported["labels"].get(CLIENT_RUN_LABEL) == run_id
            or client_run_mark(run_id) in reported["id"]
        )

    def _is_late(self, reported: Mapping[str, Any], *, is_own: bool) -> bool:
        """Return True for a server's report of a request that the job has reported, too; `is_own`:
        in its own run.
        """
        key = self._key(reported["id"])
        return key in self._sent and (
            self._is_named(reported) or (not is_own and len(key) >= _LONG_ID)
        )

    @property
    def _has_server(self) -> bool:
        """True if servers report the requests of the job, so that other requests are those of other
        clients.
        """
        return self._server_reports > 0 and self._own_reports <= _FEW * (
            self._own_reports + self._server_reports
        )

    def _warn(self) -> None:
        """Log runs that report requests of the job late, or unknown ones on its GPUs if it reports
        its own.
        """
        own = str(self._run.run_id)
        try:
            runs = self._open_runs()
            gpus = runs.get(own, set())
            reports = {
                run_id: self._requests_of(run_id, self._started_at)
                for run_id, used in runs.items()
                if used
            }
        except ExporterError:
            return
        for run_id, requests in reports.items():
            if any(self._is_late(one, is_own=run_id == own) for one in requests):
                log_message(
                    f"run {run_id} has these requests, too, since the server reported them late: "
                    "they count twice, "
                    "each time with a part of the energy; start the job again"
                )
            elif (
                not self._has_server
                and run_id not in {own, *self._server_runs}
                and requests
                and runs[run_id] & gpus
            ):
                log_message(
                    f"run {run_id} reports requests on the same GPUs: if they are those of this "
                    "job, both runs count "
                    "them, each with a part of the energy; stop the reports of the server (its "
                    "plugin, middleware or "
                    "traces)"
                )
