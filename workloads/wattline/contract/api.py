"""Names, patterns, limits and notes of the run API, and the GPUs that it lists."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

RUN_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
LABEL_NAME_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
TEXT_PATTERN = r"^[^\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]*$"
"""Text without control characters other than tab and newline: Prometheus rejects a scrape with a
NUL, terminals interpret ESC, and bidirectional ones change the order of the characters that a
terminal shows.
"""
UNIT_PATTERN = r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"
PATTERN_TEXTS = {
    RUN_ID_PATTERN: "expected 1 to 64 letters, digits, '.', '_' or '-', the first one a letter or "
    "digit",
    LABEL_NAME_PATTERN: "expected letters, digits and '_', the first one no digit",
    TEXT_PATTERN: "expected text without control characters (bidirectional ones included)",
    UNIT_PATTERN: "expected 1 to 64 letters, digits and '_', the first one no digit",
}
"""Words of each pattern, for messages."""

MAX_ID_LENGTH = 64
MAX_LABELS = 16
MAX_LABEL_NAME = 64
MAX_LABEL_VALUE = 128
"""Longest name and value of a label of a run or a request, in characters."""
HASH_DIGITS = 16
"""Hexadecimal digits of a SHA-256 hash in place of an API key or of the end of a long id."""
MAX_TEXT = 128
"""Longest workload, name of a phase or of a contributor, in characters."""
MAX_RESULTS = 64
MAX_UNITS = 16
MAX_AMOUNT = 1e300
MAX_CONTRIBUTORS = 4096
MAX_PROCESSES = 4096
MAX_RUNS_LISTED = 1_000
MAX_PHASES = 16
"""Limit of the phases of a run."""
MAX_RECENT_PHASES = 50
"""Phase changes allowed within RECENT_S: each one marks the energy of every device several times.
"""
RECENT_S = 5.0
DEFAULT_LEASE_S = 24 * 3_600.0
MAX_LEASE_S = 366 * 86_400.0
"""Longest lease, also of a run that the exporter ends by its processes."""
MAX_RUNNING = 64
"""Default limit of open runs."""
RUN_TAIL_S = 600.0
"""Default time for which the metrics have the series of an ended run."""
OWNER_LABELS = (
    *("user", "account", "partition", "job_name", "array_id"),
    *("namespace", "pod", "container", "owner_kind", "owner_name", "unit"),
)
"""Labels that a discovered run can have, in addition to `discovered`."""
MAX_POD_LABELS = 8
"""Limit of the labels and annotations of a pod that its run has."""
MAX_OWNERS = 256
"""Limit of the owners with separate counters, per node; more are counted together as OTHER_OWNERS,
by kind.
"""
OTHER_OWNERS = "(other)"
OTHER_RUNS = "(other)"
"""Run id of the attributed energy of all owners whose runs did not begin, since too many were open.
"""

RunState = Literal["running", "ended"]
Outcome = Literal["ok", "failed", "interrupted", "unknown"]
"""Outcome of a run. `unknown`: nothing reported how a discovered run ended."""
OUTCOMES: tuple[Outcome, ...] = ("failed", "interrupted", "unknown", "ok")
"""Outcomes, the worst first: a run on several nodes has the worst of them."""

NO_GPU = "no process of the run was found on a GPU"
NO_GPU_FOUND = (
    f"{NO_GPU}, so no GPU is counted; "
    'name the GPUs with --gpus 0, in Python with wattline.run(gpus="0")'
)
"""Note of a run whose GPUs are those that its processes use."""
ESTIMATED_PACKAGE = (
    "package {}: its energy is estimated from utilization (--cpu.power-model), not measured"
)
"""Note of a run for each CPU package without a meter."""


class GpuJson(TypedDict):
    gpu: str
    uuid: str
    name: str
    architecture: str


class GpusJson(TypedDict):
    """GPUs that respond now, by index; `simulation` is the path of the simulated GPUs' state."""

    gpus: list[GpuJson]
    simulation: str | None


@dataclass(frozen=True, slots=True)
class RunGpu:
    """A GPU of a run or of a node: `gpu` is its index."""

    gpu: str
    uuid: str
    name: str
    architecture: str = ""

    def to_json(self) -> GpuJson:
        return {
            "gpu": self.gpu,
            "uuid": self.uuid,
            "name": self.name,
            "architecture": self.architecture,
        }

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> RunGpu:
        """Return the GPU of a JSON object. Raises KeyError for one without its fields."""
        return cls(
            gpu=document["gpu"],
            uuid=document["uuid"],
            name=document["name"],
            architecture=document.get("architecture", ""),
        )


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs that respond now, by index."""

    gpus: tuple[RunGpu, ...]
    simulation: str | None = None
    """Path of the state file of simulated GPUs (see `wattline_exporter.simulation`)."""

    def to_json(self) -> GpusJson:
        return {"gpus": [gpu.to_json() for gpu in self.gpus], "simulation": self.simulation}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Gpus:
        """Return the GPUs of an answer. Raises KeyError for one without its fields."""
        return cls(tuple(map(RunGpu.parse, document["gpus"])), document.get("simulation"))


def unknown_gpu(name: str, available: list[str]) -> str:
    """Return the message for a GPU that the exporter does not have."""
    if not available:
        return (
            f"no GPU {name!r}: the exporter has no GPU; see exporter check, or simulate GPUs: "
            "exporter serve --simulate 2xH200"
        )
    return f"no GPU {name!r} on this node; available: {', '.join(available)}"


def begin_error(workload: str, labels: Mapping[str, str], run_id: str) -> str | None:
    """Return the first invalid field of a start of a run as `FIELD: REASON`, None without one."""
    if not workload:
        return "workload: expected at least 1 character"
    if len(labels) > MAX_LABELS:
        return f"labels: {len(labels)} labels, at most {MAX_LABELS} are allowed"
    texts = [
        ("workload", workload, MAX_TEXT, TEXT_PATTERN),
        ("run_id", run_id, MAX_ID_LENGTH, RUN_ID_PATTERN),
    ]
    for name, value in labels.items():
        texts.append((f"labels.{name}", name, MAX_LABEL_NAME, LABEL_NAME_PATTERN))
        texts.append((f"labels.{name}", value, MAX_LABEL_VALUE, TEXT_PATTERN))
    for field, text, most_characters, pattern in texts:
        if not re.fullmatch(pattern, text):
            return f"{field}: {PATTERN_TEXTS[pattern]}"
        if len(text) > most_characters:
            return f"{field}: expected at most {most_characters} characters"
    return None
