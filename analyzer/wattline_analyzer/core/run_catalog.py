"""List of the runs at a source, and their selection by id or labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from wattline.contract import metrics as m
from wattline.contract.api import OUTCOMES
from wattline.contract.work import SHARE_POLICY, is_shared
from wattline.figures import Figure, sum_of_one_job
from wattline_analyzer.core.devices import UNKNOWN_GPU, GpuModel
from wattline_analyzer.core.run_ledger import run_aliases
from wattline_analyzer.core.sample_table import Row, SampleTable, last

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


def gpu_models(table: SampleTable) -> dict[str, GpuModel]:
    """Return the models of the GPUs that the table shows, by UUID."""
    return {
        row.labels["uuid"]: GpuModel(row.labels.get("name", ""), row.labels.get("architecture", ""))
        for row in last(table, m.GPU_INFO)
    }


def run_entry(
    ledger: SampleTable,
    run_id: str,
    *,
    fresh: bool,
    models: Mapping[str, GpuModel] = MappingProxyType({}),
) -> RunEntry:
    """Return the entry of a run from its own series.

    `fresh` means that its last scrape is recent; `models` has the GPUs' models by UUID.
    """
    aliases = run_aliases(ledger, run_id)
    if aliases:
        ledger = ledger.take(~ledger.where("instance", aliases))
    starts = last(ledger, m.RUN_START, run_id=run_id)
    labels = {
        name: text
        for row in last(ledger, m.RUN_INFO, run_id=run_id)
        for name, text in row.labels.items()
    }
    outcomes = [row.labels["outcome"] for row in last(ledger, m.RUN_OUTCOME, run_id=run_id)]
    ended = len(last(ledger, m.RUN_END, run_id=run_id)) >= len(starts)
    worst = next((outcome for outcome in OUTCOMES if outcome in outcomes), "ended")
    halves_j = {
        (row.instance, row.labels["device"]): row.value
        for row in last(ledger, m.RUN_ENERGY_UNCERTAINTY, run_id=run_id, component="gpu")
    }
    whole_j = {
        (row.instance, row.labels["device"]): row.value
        for row in last(ledger, m.RUN_ENERGY, run_id=run_id, component="gpu")
    }
    energies = [
        models.get(gpu[1], UNKNOWN_GPU).with_accuracy(Figure(joules, halves_j.get(gpu)))
        for gpu, joules in whole_j.items()
    ]
    duration_s = max(
        (row.value for row in last(ledger, m.RUN_DURATION, run_id=run_id)), default=0.0
    )
    shares_j = _shares_j(ledger, run_id)
    highest_w = {
        (row.instance, row.labels["uuid"]): row.value
        for row in last(ledger, m.RUN_POWER_MAX, run_id=run_id)
    }
    shared = any(
        is_shared(
            joules,
            shares_j[gpu],
            mean_power_w=joules / duration_s if duration_s > 0 else 0.0,
            max_power_w=highest_w.get(gpu, 0.0),
            half_j=halves_j.get(gpu, 0.0),
        )
        for gpu, joules in whole_j.items()
        if gpu in shares_j
    )
    known = bool(whole_j) and whole_j.keys() <= shares_j.keys()
    return RunEntry(
        run_id,
        labels.get("workload", ""),
        {
            name.removeprefix("label_"): text
            for name, text in labels.items()
            if name.startswith("label_")
        },
        worst if ended else "running" if fresh else "unfinished",
        min(row.value for row in starts),
        duration_s,
        sum_of_one_job(energies) if energies else None,
        any(models.get(device, UNKNOWN_GPU).simulated for _, device in whole_j),
        math.fsum(min(shares_j[gpu], joules) for gpu, joules in whole_j.items()) if known else None,
        shared,
    )


def _shares_j(ledger: SampleTable, run_id: str) -> dict[tuple[str, str], float]:
    """Return the attributed energy of each GPU by instance and UUID, with that before its first
    use.
    """
    before_use_j = {
        (row.instance, row.labels["device"]): row.value
        for row in last(ledger, m.RUN_ENERGY_BEFORE_USE, run_id=run_id, component="gpu")
    }
    rows = last(
        ledger, m.RUN_ATTRIBUTED_ENERGY, run_id=run_id, component="gpu", policy=SHARE_POLICY
    )
    gpus = [((row.instance, row.labels["device"]), row.value) for row in rows]
    return {gpu: joules + before_use_j.get(gpu, 0.0) for gpu, joules in gpus}


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


def scraped_runs(rows: list[Row]) -> list[ScrapedRun]:
    """Return the runs in samples of `wattline_run_info`, in the order of their first scrapes."""
    found: dict[str, ScrapedRun] = {}
    for row in sorted(rows, key=lambda row: row.t):
        labels = {
            n.removeprefix("label_"): text
            for n, text in row.labels.items()
            if n.startswith("label_")
        }
        run_id = row.labels["run_id"]
        first_s = found[run_id].first_s if run_id in found else row.t
        found[run_id] = ScrapedRun(run_id, row.labels.get("workload", ""), labels, first_s, row.t)
    return list(found.values())
