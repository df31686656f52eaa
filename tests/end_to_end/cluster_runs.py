"""Random runs of the cluster: single-GPU, multi-GPU, shared and two-node runs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SHORTEST_S = 3.0
_PAUSE_S = 1.0
_SHARED_EVERY = 5
_MODELS = ("llama-3-8b", "qwen2-7b", "resnet-50")
_USERS = ("ada", "grace", "kurt", "mary")


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Planned run on numbered nodes; `gpus` are its GPUs on each of them."""

    run_id: str
    nodes: tuple[int, ...]
    gpus: tuple[int, ...]
    begin_s: float
    length_s: float
    labels: dict[str, str]

    @property
    def end_s(self) -> float:
        return self.begin_s + self.length_s

    @property
    def body(self) -> dict[str, Any]:
        gpus = [str(gpu) for gpu in self.gpus]
        return {"run_id": self.run_id, "workload": "cluster", "labels": self.labels, "gpus": gpus}


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int
    gpus: int
    seconds: float
    longest_s: float
    """Shortest and longest duration of a run."""
    pause_s: float
    """Longest pause between two runs."""


def random_runs(size: Size, chance: random.Random) -> Iterator[PlannedRun]:
    """Yield runs within `size.seconds` in sequence; every fifth node has two concurrent runs."""
    for node in range(size.nodes):
        for lane in range(1 if node % _SHARED_EVERY else 2):
            begin_s = chance.uniform(0.0, size.pause_s)
            number = 0
            while (room_s := size.seconds - begin_s) > SHORTEST_S:
                length_s = min(
                    math.exp(chance.uniform(math.log(SHORTEST_S), math.log(size.longest_s))), room_s
                )
                gpus = chance.sample(range(size.gpus), chance.randint(1, max(1, size.gpus // 2)))
                name = f"node-{node}-{'ab'[lane]}{number}"
                yield PlannedRun(
                    name, (node,), tuple(sorted(gpus)), begin_s, length_s, _labels(chance)
                )
                begin_s += length_s + chance.uniform(_PAUSE_S, size.pause_s)
                number += 1


def two_node_run(
    nodes: tuple[int, int], begin_s: float, length_s: float, chance: random.Random
) -> PlannedRun:
    return PlannedRun("two-nodes", nodes, (0, 1), begin_s, length_s, _labels(chance))


def fault_run(
    name: str, node: int, gpus: tuple[int, ...], begin_s: float, end_s: float
) -> PlannedRun:
    """Return the planned run that a fault will affect."""
    return PlannedRun(
        name, (node,), gpus, begin_s, end_s - begin_s, {"model": name, "user": "fault"}
    )


def _labels(chance: random.Random) -> dict[str, str]:
    return {"model": chance.choice(_MODELS), "user": chance.choice(_USERS)}
