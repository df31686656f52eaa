"""Requests of a server, reported to its run in the background."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattline.client import api as run_api
from wattline.client.api import Api, ExporterError
from wattline.client.messages import log_message, log_message_once
from wattline.contract.api import NO_GPU, NO_GPU_FOUND
from wattline.contract.requests.served import SERVER_LABEL, SERVER_WORKLOAD
from wattline.runs.run import ActiveRun

_DISCOVERED = "discovered"
ANSWER_ENERGY = "WATTLINE_ANSWER_ENERGY"
"""With the value 1, the ASGI middleware adds the energy of a request to its answer."""
_MAX_EARLY = 20_000
_RETRY_S = 10.0
_TIMEOUT_S = 5.0
_GPU_WITHIN_S = 65.0
"""Time after which a run without a GPU is logged; the exporter notes it after a minute."""
_MAX_PIDS = 64
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Served:
    """A request that the server has answered: times in Unix seconds, and tokens as the server
    counts them.
    """

    request_id: str | None
    started_at: float
    ended_at: float
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int | None = None
    first_token_at: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class ServedRequests:
    """Reporter of served requests. Only `flush`, `energy` and `close` wait for the exporter, and
    only `energy` raises.

    A thread finds the run of this server: that of WATTLINE_RUN_ID, else the one that the exporter
    knows for this process or its children, for example a discovered one, else a run `llm-server`
    that this process starts. Until the exporter can be reached, the latest requests wait.
    """

    def __init__(
        self, name: str, retry_s: float = _RETRY_S, gpu_within_s: float = _GPU_WITHIN_S
    ) -> None:
        self._name = name
        self._retry_s = retry_s
        self._gpu_within_s = gpu_within_s
        self._lock = threading.Lock()
        self._early: collections.deque[Served] = collections.deque(maxlen=_MAX_EARLY)
        self._run: ActiveRun | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._without_usage = 0

    @property
    def run_id(self) -> str | None:
        """Id of the run, None until the exporter was reached."""
        return self._run.run_id if self._run else None

    def start(self) -> None:
        """Look for the run in a thread; a second call does nothing."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._guarded, args=(self._connect,), daemon=True
                )
                self._thread.start()

    def add(self, served: Served) -> None:
        self.start()
        with self._lock:
            if self._run is None:
                self._early.append(served)
                return
        self._guarded(lambda: self._report(served))

    def note_without_usage(self) -> None:
        """Count an answer without numbers of tokens, which gets no energy."""
        self._without_usage += 1
        log_message_once(
            "cannot measure requests whose answers have no usage; let clients send "
            '"stream_options": {"include_usage": true}, or use the option of the server that '
            "always sends it "
            "(vLLM: --enable-force-include-usage)"
        )
        if self._run is not None:
            self._run.result(requests_without_usage=self._without_usage)

    def flush(self, within_s: float) -> None:
        """Post the requests so far. Waits for the exporter: call it in a thread."""
        run = self._run
        if run is not None:
            self._guarded(lambda: run.flush(within_s))

    def energy(self, request_id: str) -> Mapping[str, Any]:
        """Return the answer of GET /api/v1/requests/ID. Raises ExporterError. Call it in a
        thread.
        """
        # another server may have a request with the same id
        query = "" if self.run_id is None else f"?run_id={self.run_id}"
        return _exporter().get(f"/requests/{urllib.parse.quote(request_id, safe='')}{query}")

    def close(self) -> None:
        """Post the rest, and end the run if this server has started it. Waits for the exporter."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_TIMEOUT_S)
        if self._run is not None:
            self._guarded(self._run.end)

    def _guarded(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  # whatever fails here must not stop the server
            log_message_once(
                f"cannot report requests of {self._name}: {type(error).__name__}: {error}"
            )

    def _connect(self) -> None:
        while not self._closing.is_set():
            run = _run_of_server(self._name)
            if run.run_id is not None:
                self._hand_over(run)
                self._warn_without_gpu(run)
                return
            run.end()
            self._closing.wait(self._retry_s)

    def _hand_over(self, run: ActiveRun) -> None:
        log_message(f"requests of {self._name} are measured as run {run.run_id}")
        with self._lock:
            self._run = run
            early = list(self._early)
            self._early.clear()
        for served in early:
            self._report(served)

    def _warn_without_gpu(self, run: ActiveRun) -> None:
        """Log after a minute that no process of the run is on a GPU: its requests then have no
        energy.
        """
        view = None if self._closing.wait(self._gpu_within_s) else run.view()
        if view and NO_GPU_FOUND in view.notes:
            log_message(
                f"requests of {self._name} have no energy: {NO_GPU}; name its GPUs with "
                "CUDA_VISIBLE_DEVICES=0, "
                "or start the server with workloads run --gpus 0"
            )

    def _report(self, served: Served) -> None:
        assert self._run is not None
        self._run.request(
            started_at=served.started_at,
            ended_at=served.ended_at,
            prompt_tokens=served.prompt_tokens,
            generated_tokens=served.generated_tokens,
            cached_tokens=served.cached_tokens,
            first_token_at=served.first_token_at,
            request_id=served.request_id,
            labels=served.labels,
        )


def _exporter() -> Api:
    return Api.configured(os.environ, timeout_s=_TIMEOUT_S)


def _run_of_server(name: str) -> ActiveRun:
    """Return the started run; its id is None if the exporter cannot be reached."""
    run_id = None if os.environ.get(run_api.RUN_ID) else known_run(_exporter(), own_processes())
    return ActiveRun(
        SERVER_WORKLOAD, {SERVER_LABEL: name}, None, None, quiet=True, known_run=run_id
    ).start()


def known_run(api: Api, pids: Iterable[int]) -> str | None:
    """Return the running run of these processes, None if the exporter knows none or cannot be
    reached.

    A job that loads the server may have them in its run, which ends before the server.
    """
    query = "&".join(f"pid={pid}" for pid in pids)
    try:
        namespace = (_PROC / "self/ns/pid").stat().st_ino
        runs = api.get_list(f"/runs?state=running&pid_namespace={namespace}&{query}")
    except (ExporterError, OSError):
        return None
    return next((run["run_id"] for run in runs if not is_job(run)), None)


def is_job(run: Mapping[str, Any]) -> bool:
    """Return True for the run of a job that loads a server."""
    return (
        run["workload"] == SERVER_WORKLOAD
        and not {SERVER_LABEL, _DISCOVERED} & run["labels"].keys()
    )


def own_processes(proc: Path = _PROC) -> list[int]:
    """Return the pids of this process and its descendants, which may hold the GPUs instead; at most
    64.
    """
    pids = [os.getpid()]
    for pid in pids:
        for children in proc.glob(f"{pid}/task/*/children"):
            with contextlib.suppress(OSError):  # the process has ended
                pids += map(int, children.read_text().split())
    return pids[:_MAX_PIDS]
