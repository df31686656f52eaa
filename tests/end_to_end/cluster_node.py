"""Cluster node: an exporter of simulated GPUs that can be killed and restarted."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests

from tests import daemon, servers
from tests.bench.node import boottime_of
from tests.laboratory.loads import HIGH_W, LOW_W
from wattline.contract import metrics as m
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Fault,
    Simulation,
    Square,
    clock_s,
    create,
    make_gpus,
)

PERIODS_S = (1.5, 7.0)
PATIENCE_S = 60.0
"""Timeout for an exporter that was killed or is slow."""
_WITHOUT = ("--no-collector.rapl", "--no-collector.hwmon", "--no-collector.host")


class RefusedError(Exception):
    """Request rejected by the exporter; the text is the exporter's."""


@dataclass
class Node:
    """Exporter with simulated GPUs, each under a load whose energy is known for any window."""

    name: str
    folder: Path
    port: int
    simulation: Simulation
    _exporter: daemon.Daemon | None = None

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the exporter without waiting; see `until_ready`."""
        options = (
            "--web.listen-address",
            self.target,
            "--simulate",
            f"{len(self.simulation.gpus)}xH200",
        )
        self._exporter = daemon.start(self.folder, *options, *_WITHOUT, "--carbon.intensity", "230")
        self._exporter.url = f"http://{self.target}"

    def until_ready(self) -> None:
        assert self._exporter is not None
        daemon.wait_until_it_serves(self._exporter)
        self._answered(lambda: requests.get(f"http://{self.target}/-/ready", timeout=30))

    def kill(self) -> None:
        """Kill the exporter with SIGKILL, so that it saves nothing."""
        assert self._exporter is not None
        children = self._exporter.children()
        self._exporter.process.send_signal(signal.SIGKILL)
        self._exporter.process.wait(PATIENCE_S)
        psutil.wait_procs(children, timeout=PATIENCE_S)

    def stop(self) -> None:
        """Stop the exporter if it runs. The true energy is unknown afterwards."""
        if self._exporter is not None:
            self._exporter.stop()
            self._exporter = None
            self.simulation.close()

    def lose(self, gpu: int) -> None:
        self.simulation.set_fault(gpu, Fault.LOST, on=True)

    def find(self, gpu: int) -> None:
        self.simulation.set_fault(gpu, Fault.LOST, on=False)

    def begin(self, body: Mapping[str, Any]) -> None:
        """Begin a run and retry while the exporter is down; the run_id makes that harmless. Raise
        RefusedError.
        """
        self._answered(
            lambda: requests.post(f"http://{self.target}/api/v1/runs", json=body, timeout=30)
        )

    def end(self, run_id: str) -> None:
        self._answered(
            lambda: requests.post(
                f"http://{self.target}/api/v1/runs/{run_id}/end", json={}, timeout=30
            )
        )

    def run(self, run_id: str) -> dict[str, Any]:
        """Return the run from the ledger."""
        answer = self._answered(
            lambda: requests.get(f"http://{self.target}/api/v1/runs/{run_id}", timeout=30)
        )
        return dict(answer.json())

    def true_j(self, run: Mapping[str, Any], gpus: Sequence[int]) -> dict[str, float]:
        """Return the true energy of GPUs between the ledger's start and end of the run, by UUID."""
        begin_s = boottime_of(run["started_at"])
        end_s = begin_s + run["duration_seconds"]
        return {
            self.simulation.gpus[gpu].uuid: self.simulation.energy_j(gpu, begin_s, end_s)
            for gpu in gpus
        }

    def attribution_deviation(self) -> float:
        """Return the largest relative deviation of attributed plus unattributed energy from the
        counters.
        """
        assert self._exporter is not None
        series = self._exporter.metrics()
        counters_j = {labels["uuid"]: joules for labels, joules in series[m.GPU_ENERGY.name]}
        parts_j: dict[tuple[str, str], float] = {}
        for labels, joules in series[m.RUN_ATTRIBUTED_ENERGY.name]:
            key = labels["device"], labels["policy"]
            parts_j[key] = parts_j.get(key, 0.0) + joules
        assert {device for device, _ in parts_j} == set(counters_j), (parts_j, counters_j)
        return max(abs(joules / counters_j[device] - 1) for (device, _), joules in parts_j.items())

    def reads(self) -> tuple[float, float]:
        """Return the number of reads of the driver, and of late or failed ones."""
        assert self._exporter is not None
        series = [
            (labels, value) for labels, value in self._exporter.metrics()[m.SOURCE_READS.name]
        ]
        count = {labels["outcome"]: value for labels, value in series if labels["source"] == "nvml"}
        return sum(count.values()), count.get("late", 0.0) + count.get("failed", 0.0)

    def _answered(self, request: Callable[[], requests.Response]) -> requests.Response:
        give_up_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = request()
            except requests.ConnectionError:
                assert time.monotonic() < give_up_s, f"{self.name} does not answer at {self.target}"
            else:
                if answer.ok:
                    return answer
                if answer.status_code != requests.codes.service_unavailable:
                    raise RefusedError(f"{self.name}: {answer.text.strip()}")
                assert time.monotonic() < give_up_s, f"{self.name} is not ready: {answer.text}"
            time.sleep(0.2)


def make_node(folder: Path, name: str, gpus: int, chance: random.Random) -> Node:
    """Return a node that is not started."""
    state = folder / "state"
    state.mkdir(parents=True)
    create(state / FILE_NAME, make_gpus(gpus, PRODUCTS["H200"], name), clock_s())
    simulation = Simulation.open(state / FILE_NAME)
    for gpu in range(gpus):
        period_s = chance.uniform(*PERIODS_S)
        simulation.set_load(
            gpu, Square(LOW_W, HIGH_W, period_s, phase_s=chance.uniform(0.0, period_s))
        )
    return Node(name, folder, servers.free_port(), simulation)
