"""Clients that begin runs, report phases and work, and end them, while the exporter is killed."""

import math
import random
import time
from dataclasses import dataclass, field
from http import HTTPStatus

import requests

from tests.daemon import Daemon
from wattline_exporter.simulation import clock_s

PHASES = ("load", "warmup", "measure", "save")
PAUSE_S = 0.04
"""Longest pause of a client, so that all clients and exporters share two cores without a queue."""


@dataclass
class Acknowledged:
    """Items of one run that the exporter has acknowledged."""

    run_id: str
    gpus: list[str]
    offset_s: float = 0.0
    """Unix time less CLOCK_BOOTTIME when the begin was acknowledged; the wall clock may step later.
    """
    phases: list[str] = field(default_factory=list)
    work: dict[str, float] = field(default_factory=dict)
    """Steps by contributor."""
    end: dict | None = None

    def check(self, run: dict) -> None:
        assert [phase["name"] for phase in run["phases"]][: len(self.phases)] == self.phases, (
            self,
            run,
        )
        assert run["work"].get("steps", 0.0) >= sum(self.work.values()), (self, run)
        if self.end is not None:
            assert run == self.end


class Client:
    """Client that begins runs, reports phases and work, and ends them. It repeats a request that
    was not answered.
    """

    def __init__(self, name: str, rng: random.Random, pause_s: float = PAUSE_S) -> None:
        self.name, self._pause_s = name, pause_s
        self.runs: list[Acknowledged] = []
        self.answers = 0
        self._rng = rng
        self._actions = self._act()
        self._action = next(self._actions)

    def use(self, exporter: Daemon) -> None:
        """Send requests until the exporter is killed or stops."""
        try:
            while True:
                path, body, acknowledge = self._action
                status, answer = exporter.post(path, body)
                if status == HTTPStatus.SERVICE_UNAVAILABLE and "stopping" in answer["detail"]:
                    return
                assert status in (200, 201), (path, body, answer)
                acknowledge(answer)
                self.answers += 1
                self._action = next(self._actions)
                time.sleep(self._rng.uniform(0.0, self._pause_s))
        except requests.RequestException:
            return

    def _note_begin(self, run: Acknowledged) -> None:
        run.offset_s = unix_offset_s()
        self.runs.append(run)

    def _act(self):
        """Yield path and body of each request, and what to do with its answer."""
        while True:
            gpus = self._rng.sample([str(i) for i in range(8)], self._rng.randint(1, 2))
            run = Acknowledged(f"{self.name}-{len(self.runs)}", gpus)
            begin = {"workload": "killed", "run_id": run.run_id, "gpus": gpus}
            yield "/api/v1/runs", begin, lambda _, run=run: self._note_begin(run)
            url = f"/api/v1/runs/{run.run_id}"
            for phase in self._rng.sample(PHASES, self._rng.randint(0, 3)):
                yield (
                    f"{url}/phase",
                    {"name": phase},
                    lambda _, run=run, phase=phase: run.phases.append(phase),
                )
                for step in range(self._rng.randint(0, 2)):
                    contributor, steps = f"rank-{step % 2}", 10.0 * (len(run.phases) * 8 + step)
                    done = {contributor: steps}
                    yield (
                        f"{url}/work",
                        {"contributor": contributor, "steps": steps},
                        lambda _, d=done, r=run: r.work.update(d),
                    )
            yield (
                f"{url}/end",
                {"outcome": "ok"},
                lambda answer, run=run: setattr(run, "end", answer),
            )


def assert_phases_within_run(run):
    for component, devices in run["energy_joules"].items():
        phases_j = math.fsum(phase["energy_joules"].get(component, 0.0) for phase in run["phases"])
        assert phases_j <= math.fsum(devices.values()) * (1 + 1e-9), run
    assert (
        math.fsum(phase["duration_seconds"] for phase in run["phases"])
        <= run["duration_seconds"] + 1e-6
    ), run


def unix_offset_s():
    """Return Unix time less CLOCK_BOOTTIME, from the closest of some readings: a busy machine
    delays some of them.
    """
    readings = [(clock_s(), time.time(), clock_s()) for _ in range(5)]
    before_s, at, after_s = min(readings, key=lambda reading: reading[2] - reading[0])
    return at - (before_s + after_s) / 2


@dataclass
class Figure:
    """Energy of one GPU in one run, with its interval and its true value."""

    run_id: str
    gpu: int
    seconds: float
    joules: float
    half_j: float
    true_j: float
    notes: list[str]

    @property
    def error(self) -> float:
        """Error as a ratio to the half-width."""
        return abs(self.joules - self.true_j) / self.half_j


def figures(simulation, run, offset_s):
    begin_s, seconds = run["started_at"] - offset_s, run["duration_seconds"]
    indices = {gpu["uuid"]: int(gpu["gpu"]) for gpu in run["gpus"]}
    for uuid, joules in run["energy_joules"]["gpu"].items():
        true_j = simulation.energy_j(indices[uuid], begin_s, begin_s + seconds)
        half_j = run["energy_uncertainty_joules"]["gpu"][uuid]
        yield Figure(run["run_id"], indices[uuid], seconds, joules, half_j, true_j, run["notes"])
