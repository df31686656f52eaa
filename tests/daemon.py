"""Real `exporter serve` in a separate process, driven over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import requests
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.fork_server import ForkedProcess, ForkServer
from tests.polling import eventually
from wattline_exporter.simulation import FILE_NAME, Simulation
from wattline_exporter.web.metrics_page import SHARED_S

READY_WITHIN_S = 30.0
STOPPED_WITHIN_S = 15.0
PROGRAM = ("-m", "wattline_exporter")
_NURSERY = ForkServer("wattline_exporter.cli.main", "wattline_exporter.cli.daemon")
_OURS = ("WATTLINE_", "CUDA_", "NVIDIA_", "STATE_DIRECTORY", "XDG_STATE_HOME")


@dataclass
class Daemon:
    url: str
    process: subprocess.Popen[bytes] | ForkedProcess
    folder: Path
    """The state folder."""
    log_file: Path
    _children: list[psutil.Process] = field(default_factory=list)
    _asked_s: float = 0.0

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        """Return the status and the parsed JSON, or the text if it is not JSON."""
        return _answer(requests.get(self.url + path, headers=headers, timeout=30))

    def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        answer = _answer(
            requests.post(self.url + path, json={} if body is None else body, timeout=30)
        )
        self._asked_s = time.monotonic()
        return answer

    def log(self) -> str:
        return self.log_file.read_text()

    def text(self) -> str:
        """Return the metrics, rendered after the last `post`."""
        time.sleep(max(0.0, self._asked_s + SHARED_S + 0.01 - time.monotonic()))
        return requests.get(f"{self.url}/metrics", timeout=30).text

    def samples(self) -> list[Sample]:
        return [
            sample
            for family in text_string_to_metric_families(self.text())
            for sample in family.samples
        ]

    def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return labels and value of each sample, by metric name."""
        result: dict[str, list[tuple[dict[str, str], float]]] = {}
        for sample in self.samples():
            result.setdefault(sample.name, []).append((sample.labels, sample.value))
        return result

    def value(self, name: str, /, **labels: str) -> float | None:
        """Return the only sample with at least these labels, or None."""
        result = [
            v
            for series_labels, v in self.metrics().get(name, ())
            if labels.items() <= series_labels.items()
        ]
        assert len(result) <= 1, f"{name}{labels} is {len(result)} series"
        return result[0] if result else None

    def simulation(self) -> Simulation:
        """Open the simulation of `--simulate`; the caller closes it."""
        return Simulation.open(self.folder / FILE_NAME)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_for_metric(
        self, holds: Callable[[float | None], bool], name: str, /, **labels: str
    ) -> float | None:
        """Wait until the sample's value fulfils the condition and return it."""
        eventually(lambda: holds(self.value(name, **labels)), f"{name} {labels}", self.log)
        return self.value(name, **labels)

    def stop(self, sign: int = signal.SIGTERM) -> int:
        """Stop the daemon, assert that no process is left, and return its exit code."""
        if self.process.poll() is None:
            self._children = self.children()
            self.process.send_signal(sign)
        code = self.process.wait(STOPPED_WITHIN_S)
        _, left = psutil.wait_procs(self._children, timeout=STOPPED_WITHIN_S)
        for child in left:
            child.kill()
        assert not left, f"the exporter left behind {left}\n{self.log()}"
        return code


def _answer(response: requests.Response) -> tuple[int, Any]:
    try:
        return response.status_code, response.json()
    except requests.JSONDecodeError:
        return response.status_code, response.text


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment without variables that would affect an exporter."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    return {**own, **(extra or {})}


def start(
    tmp_path: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
    nursery: ForkServer | None = _NURSERY,
) -> Daemon:
    """Start a daemon on a free port without waiting; a later one on the same folder continues its
    state.

    `nursery=None` starts a process that shares no memory with another.
    """
    folder = tmp_path / "state"
    log_file = tmp_path / f"exporter-{time.monotonic_ns()}.log"
    command = [
        *program,
        "serve",
        "--web.listen-address",
        "127.0.0.1:0",
        "--state.path",
        str(folder),
        *options,
    ]
    with log_file.open("wb") as log:
        process = (nursery or ForkServer(forks=False)).start(command, environment(env), log, log)
    return Daemon("", process, folder, log_file)


@contextmanager
def daemon(
    tmp_path: Path,
    *options: str,
    env: Mapping[str, str] | None = None,
    ready: bool = True,
    program: Sequence[str] = PROGRAM,
    nursery: ForkServer | None = _NURSERY,
) -> Iterator[Daemon]:
    """Yield a running exporter; with `ready` it has read its sources."""
    started = start(tmp_path, *options, env=env, program=program, nursery=nursery)
    try:
        wait_until_it_serves(started)
        if ready:
            eventually(
                lambda: started.get("/-/ready")[0] == 200, "readiness", started.log, READY_WITHIN_S
            )
        yield started
    finally:
        started.stop()


def wait_until_it_serves(started: Daemon) -> None:
    def serves() -> bool:
        assert started.process.poll() is None, f"the exporter ended: {started.log()}"
        result = re.search(r"serving on (https?://[^\s,]+)", started.log())
        started.url = result[1] if result else ""
        return bool(result)

    eventually(serves, "an address in the log", started.log, READY_WITHIN_S)


def begin(exporter: Daemon, workload: str = "test", **body: Any) -> dict[str, Any]:
    """Begin a run and return it."""
    status, run = exporter.post("/api/v1/runs", {"workload": workload, **body})
    assert status == 201, json.dumps(run)
    return dict(run)


def end(exporter: Daemon, run_id: str, **body: Any) -> dict[str, Any]:
    status, run = exporter.post(f"/api/v1/runs/{run_id}/end", body)
    assert status == 200, json.dumps(run)
    return dict(run)
