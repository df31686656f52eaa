"""The runs that a source knows, a line each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from analyzer.model.interval import Interval, total
from analyzer.model.samples import last
from exporter.contract import metrics as m


@dataclass(frozen=True, slots=True)
class ListedRun:
    """`state` is running, or the outcome of an ended run; `unfinished` where its end was never scraped."""

    run_id: str
    workload: str
    labels: Mapping[str, str]
    state: str
    started_at_s: float
    duration_s: float
    gpu_energy: Interval | None


def listed(ledger: pd.DataFrame, run_id: str, *, fresh: bool) -> ListedRun:
    """`ledger` are the run's own series; `fresh` says that it was scraped just now."""
    starts = last(ledger, m.RUN_START, run_id=run_id)
    labels = {name: text for row in last(ledger, m.RUN_INFO, run_id=run_id) for name, text in row.labels.items()}
    outcomes = [row.labels["outcome"] for row in last(ledger, m.RUN_OUTCOME, run_id=run_id)]
    ended = len(last(ledger, m.RUN_END, run_id=run_id)) >= len(starts)
    worst = next((outcome for outcome in ("failed", "interrupted", "ok") if outcome in outcomes), "ended")
    halves_j = {
        (row.instance, row.labels["device"]): row.value
        for row in last(ledger, m.RUN_ENERGY_UNCERTAINTY, run_id=run_id, component="gpu")
    }
    energies = [
        Interval(row.value, halves_j.get((row.instance, row.labels["device"])))
        for row in last(ledger, m.RUN_ENERGY, run_id=run_id, component="gpu")
    ]
    return ListedRun(
        run_id,
        labels.get("workload", ""),
        {name.removeprefix("label_"): text for name, text in labels.items() if name.startswith("label_")},
        worst if ended else "running" if fresh else "unfinished",
        min(row.value for row in starts),
        max((row.value for row in last(ledger, m.RUN_DURATION, run_id=run_id)), default=0.0),
        total(energies) if energies else None,
    )
