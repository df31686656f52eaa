"""Live state of runs: energy, work and rate so far."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import pandas as pd

from analyzer.live.model import LiveRun
from analyzer.model.interval import Interval, total
from analyzer.model.samples import Row, last, of
from exporter.contract import metrics as m

_UNITS = ("generated_tokens", "samples", "requests", "steps")
_RATE_S = 10.0
_OUTCOMES = ("failed", "interrupted", "ok")


def live_runs(frame: pd.DataFrame, live: pd.DataFrame, stale: AbstractSet[str]) -> Iterator[LiveRun]:
    """Yield running and just ended runs, the oldest first. `live` are the newest samples of live nodes; a run on a
    `stale` node has no values.
    """
    shown = pd.concat([live, frame[frame["instance"].isin(stale)]])
    starts = sorted(last(shown, m.RUN_START), key=lambda row: row.value)
    for run_id in dict.fromkeys(row.labels["run_id"] for row in starts):
        instances = tuple(row.instance for row in starts if row.labels["run_id"] == run_id)
        workloads = [row.labels.get("workload", "") for row in last(shown, m.RUN_INFO, run_id=run_id)]
        of_run = live[live["run_id"] == run_id]
        state = "stale" if stale & set(instances) else _state(of_run, len(instances))
        yield _run(frame, of_run, run_id, (next(iter(workloads), ""), state, instances))


def _state(of_run: pd.DataFrame, instances: int) -> str:
    if len(last(of_run, m.RUN_END)) < instances:
        return "running"
    outcomes = [row.labels["outcome"] for row in last(of_run, m.RUN_OUTCOME)]
    return next((outcome for outcome in _OUTCOMES if outcome in outcomes), "ended")


def _run(frame: pd.DataFrame, of_run: pd.DataFrame, run_id: str, known: tuple[str, str, tuple[str, ...]]) -> LiveRun:
    amounts: dict[str, float] = {}
    for row in last(of_run, m.RUN_WORK):
        amounts[row.labels["unit"]] = amounts.get(row.labels["unit"], 0.0) + row.value
    done = [unit for unit, amount in amounts.items() if amount > 0]
    unit = min(done, key=lambda one: (_UNITS.index(one) if one in _UNITS else len(_UNITS), one), default=None)
    energy = _energies(of_run)
    used = energy.get("gpu") or energy.get("cpu")
    return LiveRun(
        run_id,
        *known,
        max((row.value for row in last(of_run, m.RUN_DURATION)), default=None),
        energy,
        unit,
        amounts[unit] if unit else None,
        _rate(frame, run_id, unit) if unit and known[1] == "running" else None,
        used.value / amounts[unit] if unit and used else None,
    )


def _energies(of_run: pd.DataFrame) -> dict[str, Interval]:
    halves_j = {_device(row): row.value for row in last(of_run, m.RUN_ENERGY_UNCERTAINTY)}
    parts: dict[str, list[Interval]] = {}
    for row in last(of_run, m.RUN_ENERGY):
        parts.setdefault(row.labels["component"], []).append(Interval(row.value, halves_j.get(_device(row))))
    return {component: total(known) for component, known in parts.items()}


def _device(row: Row) -> tuple[str, str, str]:
    return row.instance, row.labels["component"], row.labels["device"]


def _rate(frame: pd.DataFrame, run_id: str, unit: str) -> float | None:
    """Return the rate over the last seconds, of all instances together."""
    found = []
    for _, rows in of(frame, m.RUN_WORK, run_id=run_id, unit=unit).groupby("instance"):
        ordered = rows.sort_values("t")
        recent = ordered[ordered["t"] >= ordered["t"].iloc[-1] - _RATE_S]
        recent = recent if len(recent) > 1 else ordered.iloc[-2:]
        span_s = float(recent["t"].iloc[-1] - recent["t"].iloc[0])
        if span_s > 0:
            found.append(float(recent["value"].iloc[-1] - recent["value"].iloc[0]) / span_s)
    return sum(found) if found else None
