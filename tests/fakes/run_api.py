"""Run API on loopback, in memory: requests and responses of the contract, without sensors.

`python -m tests.fakes.run_api PORT` serves until it is killed, in place of an exporter.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from wattline.contract.api import Gpus, RunGpu
from wattline.contract.run import Run, RunDevice
from wattline.contract.work import is_declaration
from wattline.figures import Figure
from wattline_exporter.web.bodies import (
    BeginRequest,
    EndRequest,
    PhaseRequest,
    ProcessesRequest,
    WorkRequest,
)


@dataclass(frozen=True)
class Request:
    at_s: float
    method: str
    path: str
    body: Any


class ProblemError(Exception):
    def __init__(self, status: int, detail: str, retry_after: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.retry_after = retry_after


def reported_requests(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the requests of a report, which has objects or an array for each field."""
    found = body["requests"]
    if isinstance(found, list):
        return found
    labels = [found["labels"][number] for number in found["label_set"]]
    fields = {
        name: values for name, values in found.items() if name not in ("labels", "label_set")
    } | {"labels": labels}
    requests = [dict(zip(fields, each, strict=True)) for each in zip(*fields.values(), strict=True)]
    return [{name: value for name, value in one.items() if value is not None} for one in requests]


class RunApi:
    """Run API in memory. `known_gpus` are UUIDs by index; work is summed over contributors, as in
    the exporter.
    """

    def __init__(self, known_gpus: tuple[str, ...] = (), simulation: str | None = None) -> None:
        self.known_gpus = known_gpus
        self.simulation = simulation
        self.requests: list[Request] = []
        self.runs: dict[str, Run] = {}
        self.begun: dict[str, BeginRequest] = {}
        self.pids: dict[str, list[int]] = {}
        self.refuses_pids = False
        """Refuse processes, as an exporter in another PID namespace does."""
        self.totals: dict[str, dict[str, dict[str, float]]] = {}
        self.served: dict[str, dict[str, Any]] = {}
        """Requests that servers reported, by id; one with negative tokens is refused with its
        batch.
        """
        self.server_of: dict[str, str] = {}
        """Run that reported a request last, by the request's id."""
        self.energies: dict[str, float] = {}
        """Answer to GET /api/v1/requests/ID of each reported request."""
        self.busy: list[ProblemError] = []
        """Problems that the next reports of requests raise."""
        self.responds = threading.Event()
        """Cleared, the API receives requests, and executes them only when it is set again."""
        self.responds.set()
        self._lock = threading.Lock()

    @property
    def only_run(self) -> Run:
        (run,) = self.runs.values()
        return run

    def change(self, run_id: str, **fields: Any) -> None:
        """Replace fields of a run."""
        self.runs[run_id] = replace(self.runs[run_id], **fields)

    def bodies(self, ending: str) -> list[Any]:
        return [request.body for request in self.requests if request.path.endswith(ending)]

    def answer(self, method: str, path: str, content: bytes) -> tuple[int, dict[str, Any]]:
        body = json.loads(content) if content else None
        self.responds.wait()
        with self._lock:
            self.requests.append(Request(time.monotonic(), method, path, body))
            if path == "/-/ready":
                return 200, {}
            if path == "/api/v1/gpus":
                return 200, dict(Gpus(tuple(self._resolved(None)), self.simulation).to_json())
            if path == "/api/v1/runs":
                return self._begin(BeginRequest.model_validate(body))
            request_id, _, query = path.removeprefix("/api/v1/requests/").partition("?")
            if request_id in self.served and query in (
                "",
                f"run_id={self.server_of.get(request_id)}",
            ):
                return 200, {"id": request_id, **self.energies}
            match = re.fullmatch(r"/api/v1/runs/([^/]+)(?:/(\w+))?", path)
            if not match or match[1] not in self.runs:
                raise ProblemError(404, f"there is no {path}")
            if match[2]:
                self._change(match[1], match[2], body)
            return 200, dict(self.runs[match[1]].to_json())

    def _begin(self, request: BeginRequest) -> tuple[int, dict[str, Any]]:
        run_id = request.run_id or f"run-{len(self.runs)}"
        if run_id in self.runs and self.begun[run_id] != request:
            raise ProblemError(409, f"run {run_id} was begun with another body")
        status = 200 if run_id in self.runs else 201
        if status == 201:
            if self.refuses_pids and request.pids:
                raise ProblemError(422, "pids: they are of another PID namespace")
            self.begun[run_id] = request
            self.runs[run_id] = _new_run(
                run_id, request, self._resolved(request.gpus), self.simulation
            )
            if request.pids:
                self.pids[run_id] = list(request.pids)
        return status, dict(self.runs[run_id].to_json())

    def _resolved(self, gpus: list[str] | None) -> list[RunGpu]:
        names = self.known_gpus if gpus is None else gpus
        by_name = {name: i for i, uuid in enumerate(self.known_gpus) for name in (uuid, str(i))}
        for gpu in names:
            if gpu not in by_name:
                raise ProblemError(422, f"gpus: there is no GPU {gpu} here")
        indices = [by_name[gpu] for gpu in names]
        return [RunGpu(gpu=str(i), uuid=self.known_gpus[i], name="a GPU") for i in indices]

    def _change(self, run_id: str, action: str, body: Any) -> None:
        run = self.runs[run_id]
        if run.state == "ended" and action != "end":
            raise ProblemError(409, f"run {run_id} has ended")
        match action:
            case "processes":
                processes = ProcessesRequest.model_validate(body)
                if self.refuses_pids and processes.pids:
                    raise ProblemError(422, "pids: they are of another PID namespace")
                self.pids.setdefault(run_id, []).extend(processes.pids)
            case "work":
                self._work(run, WorkRequest.model_validate(body))
            case "phase":
                PhaseRequest.model_validate(body)
            case "requests":
                if self.busy:
                    raise self.busy.pop(0)
                served = reported_requests(body)
                if any(one["generated_tokens"] < 0 for one in served):
                    raise ProblemError(422, "requests: generated_tokens: expected 0 or more")
                self.served |= {one["id"]: one for one in served}
                self.server_of |= {one["id"]: run_id for one in served}
            case "end" if run.state == "running":
                end = EndRequest.model_validate(body)
                now = end.ended_at or time.time()
                self.runs[run_id] = replace(
                    run,
                    state="ended",
                    outcome=end.outcome,
                    ended_at=now,
                    results=end.results,
                    duration_s=now - run.started_at,
                )

    def _work(self, run: Run, request: WorkRequest) -> None:
        contributors = self.totals.setdefault(run.run_id, {})
        if is_declaration(request.amounts):
            unit = run.work_unit or next(iter(request.amounts))
            self.runs[run.run_id] = replace(run, work_unit=unit)
            return
        before = contributors.get(request.contributor, {})
        for unit, amount in request.amounts.items():
            if amount < before.get(unit, 0):
                raise ProblemError(422, f"{unit}: {amount} is less than before")
        contributors[request.contributor] = {**before, **request.amounts}
        work: dict[str, float] = {}
        for amounts in contributors.values():
            for unit, amount in amounts.items():
                work[unit] = work.get(unit, 0) + amount
        self.runs[run.run_id] = replace(run, work=work)


def _new_run(run_id: str, request: BeginRequest, gpus: list[RunGpu], simulation: str | None) -> Run:
    return Run(
        run_id=run_id,
        workload=request.workload,
        labels=request.labels,
        gpus=tuple(gpus),
        state="running",
        started_at=time.time(),
        duration_s=0.0,
        devices=tuple(RunDevice("gpu", gpu.uuid, Figure(100.0)) for gpu in gpus),
        simulation=simulation,
    )


class _Handler(http.server.BaseHTTPRequestHandler):
    api: RunApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, content: bytes) -> None:
        kind, retry_after = "application/json", ""
        try:
            status, body = self.api.answer(self.command, self.path, content)
        except (ProblemError, ValidationError) as error:
            kind = "application/problem+json"
            status = error.status if isinstance(error, ProblemError) else 422
            retry_after = getattr(error, "retry_after", "")
            body = {
                "type": "about:blank",
                "title": "refused",
                "status": status,
                "detail": str(error),
            }
        self._send(status, kind, body, retry_after)

    def _send(
        self, status: int, kind: str, body: dict[str, Any] | BaseModel, retry_after: str = ""
    ) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if retry_after:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def run_api_server(api: RunApi, port: int = 0) -> Iterator[str]:
    """Address, `http://127.0.0.1:PORT`."""
    handler = type("Handler", (_Handler,), {"api": api})
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def main() -> None:
    try:
        with run_api_server(RunApi(), int(sys.argv[1])) as address:
            print(f"listening on {address}", flush=True)
            threading.Event().wait()
    except OSError as error:
        sys.exit(f"cannot listen on port {sys.argv[1]}: {error.strerror}")


if __name__ == "__main__":
    main()
