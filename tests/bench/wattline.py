"""Wattline's exporter as a program under test, and runs on it."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.node import GPUS, Node, boottime_of
from tests.bench.program import Program, ProgramError
from wattline_exporter.simulation import clock_s

READY_WITHIN_S = 30.0
CLOCKS_DIFFER_S = 0.002
"""Tolerance of an instant converted from the wall clock to CLOCK_BOOTTIME, in seconds."""


@dataclass(frozen=True, slots=True)
class Exporter:
    program: Program
    port: int

    def begin(self, workload: str, pids: Sequence[int] = (), **fields: Any) -> str:
        body = {"workload": workload, **({"pids": list(pids)} if pids else {}), **fields}
        return str(self._post("/api/v1/runs", body)["run_id"])

    def end(self, run_id: str) -> dict[str, Any]:
        return self._post(f"/api/v1/runs/{run_id}/end", {})

    def reads(self, source: str) -> float:
        """Return the number of reads of the source so far."""
        return sum(exported_values(self.port, "wattline_source_reads_total", f'source="{source}"'))

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    def until_ready(self, gpus: int = GPUS) -> None:
        self.program.until(
            lambda: exported_gpus(self.port, b"wattline_gpu_up{") == gpus, READY_WITHIN_S
        )


def start_exporter(
    environment: Mapping[str, str],
    folder: Path,
    name: str = "exporter",
    options: Sequence[str] = (),
) -> Exporter:
    """Start an exporter with these options on a new state folder; the context of `program` stops
    it.
    """
    port = free_port()
    command: list[str | Path] = [
        *(
            sys.executable,
            "-P",
            "-m",
            "wattline_exporter.cli.main",
            "serve",
            "--web.listen-address",
            f"127.0.0.1:{port}",
        ),
        *("--state.path", folder / name, "--log.level", "warn"),
        *options,
    ]
    return Exporter(Program(name, command, environment, folder), port)


@dataclass(frozen=True, slots=True)
class Window:
    """Energy of each GPU that a tool reports between two instants of CLOCK_BOOTTIME.

    `half_width_j` is the half-width of the tool's 95 % CI; `begin_took_s` is the delay that its
    start causes.
    """

    begin_s: float
    end_s: float
    joules: dict[int, float]
    half_width_j: dict[int, float]
    begin_took_s: float


def run_window(
    exporter: Exporter, node: Node, seconds: float, pause: Callable[[float], object]
) -> Window:
    """Run for `seconds` and return the window that the run states.

    Raise ProgramError if that window is not the one between the calls.
    """
    begun_s = clock_s()
    run_id = exporter.begin("bench")
    took_s = clock_s() - begun_s
    pause(seconds)
    called_s = clock_s()
    run = exporter.end(run_id)
    ended_s = clock_s()
    begin_s = boottime_of(run["started_at"])
    end_s = begin_s + run["duration_seconds"]
    if not (begun_s - CLOCKS_DIFFER_S <= begin_s <= begun_s + took_s + CLOCKS_DIFFER_S):
        raise ProgramError(
            f"the run states a start {begin_s - begun_s:+.3f} s from the call that started it"
        )
    if not (called_s - CLOCKS_DIFFER_S <= end_s <= ended_s + CLOCKS_DIFFER_S):
        raise ProgramError(
            f"the run states an end {end_s - called_s:+.3f} s from the call that ended it"
        )
    joules, half_width_j = run["energy_joules"]["gpu"], run["energy_uncertainty_joules"]["gpu"]
    return Window(
        begin_s,
        end_s,
        {gpu: joules[uuid] for gpu, uuid in enumerate(node.uuids)},
        {gpu: half_width_j[uuid] for gpu, uuid in enumerate(node.uuids)},
        took_s,
    )


def exported_values(port: int, name: str, label: str = "") -> list[float]:
    """Return the values of the series with the label, such as `source="nvml"`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = [line.decode() for line in answer]
    return [
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(f"{name}{{") and label in line
    ]


def exported_gpus(port: int, series: bytes) -> int:
    """Return the number of series of that name in a scrape; 0 without a response."""
    with (
        suppress(OSError, http.client.HTTPException),
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer,
    ):
        return sum(line.startswith(series) for line in answer)
    return 0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
