"""List of the runs at a source, and their selection by id or labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattline.contract.run import Run, RunDevice
from wattline.figures import Figure
from wattline_analyzer.core.facts import Fact

OWN_LABELS = ("workload", "run_id")
SIDE_PHASES = ("warm-up", "idle")
"""Phases of a plan's auxiliary runs, which are selected only on request."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """Run in the list of runs; `state` is running, an outcome, or `unfinished` if its end was never
    scraped.
    """

    run_id: str
    workload: str
    labels: Mapping[str, str]
    state: str
    started_at_s: float
    duration_s: float
    gpu_energy: Figure | None
    """Energy of the whole GPUs."""
    simulated: bool = False
    attributed_gpu_j: float | None = None
    """Attributed share of the GPUs' energy by policy idle_shared; None if one is unknown."""
    shared: bool = False
    """True if others than the run used a part of that energy."""


def run_entry(run: Run, *, fresh: bool) -> RunEntry:
    """Return the entry of a run; `fresh` means that its last scrape is recent."""
    gpus = [device for device in run.devices if device.component == "gpu"]
    unended = "running" if fresh else "unfinished"
    return RunEntry(
        run.run_id,
        run.workload,
        run.labels,
        run.outcome or "ended" if run.state == "ended" else unended,
        run.started_at,
        run.duration_s,
        run.energy("gpu") if gpus else None,
        run.is_simulated,
        _attributed_j(gpus),
        any(gpu.attributed_j is not None for gpu in gpus),
    )


def _attributed_j(gpus: Sequence[RunDevice]) -> float | None:
    """Return the run's share of its GPUs, of each at most its energy; None where one is unknown."""
    shares_j = [
        min(gpu.share_j, gpu.energy_j.value)
        for gpu in gpus
        if gpu.share_j is not None and gpu.energy_j.value is not None
    ]
    return math.fsum(shares_j) if gpus and len(shares_j) == len(gpus) else None


class SelectionError(ValueError):
    """Invalid selector; the message shows valid ones."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Selection of runs: `equal` are values of labels, `workload` or `run_id`; `text` is the user's
    input.
    """

    text: str
    equal: Mapping[str, str]

    @property
    def matchers(self) -> dict[str, str]:
        """Matchers for the labels of `wattline_run_info`."""
        return {
            name if name in OWN_LABELS else f"label_{name}": value
            for name, value in self.equal.items()
        }

    def includes(self, labels: Mapping[str, str]) -> bool:
        """Return False for warm-ups and idle baselines, unless the selector has a phase or a run
        ID.
        """
        return (
            "phase" in self.equal
            or "run_id" in self.equal
            or labels.get("phase") not in SIDE_PHASES
        )


@dataclass(frozen=True, slots=True)
class ScrapedRun:
    """Run with its labels and the times of its first and last scrape."""

    run_id: str
    workload: str
    labels: Mapping[str, str]
    first_s: float
    last_s: float


def parse_selector(text: str) -> Selector:
    """Parse `model=a,mps=true` or the ID of a run. Raises SelectionError."""
    if "=" not in text:
        if not text.strip():
            raise SelectionError("empty selector; give a run ID, or labels as in model=a,mps=true")
        return Selector(text, {"run_id": text})
    equal = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if not name.strip() or not value.strip():
            raise SelectionError(
                f"invalid selector {text!r}; give a run ID, or labels as in model=a,mps=true"
            )
        equal[name.strip()] = value.strip()
    return Selector(text, equal)


def scraped_runs(infos: Sequence[Fact]) -> list[ScrapedRun]:
    """Return the runs of facts of `wattline_run_info`, in the order of their first scrapes."""
    found: dict[str, ScrapedRun] = {}
    for info in sorted(infos, key=lambda info: info.t):
        run_id = info.labels["run_id"]
        labels = {
            name.removeprefix("label_"): text
            for name, text in info.labels.items()
            if name.startswith("label_")
        }
        first_s = info.first_s
        if run_id in found:
            first_s = min(first_s, found[run_id].first_s)
        workload = info.labels.get("workload", "")
        found[run_id] = ScrapedRun(run_id, workload, labels, first_s, info.t)
    return sorted(found.values(), key=lambda run: run.first_s)
