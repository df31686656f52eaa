"""Energy that the work of each run is divided by, from the tallies of its series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.contract.run import combine
from wattline.contract.run_series import SeriesRow, from_rows
from wattline_analyzer.usage.tallies import RunKey, Tally, WindowTallies, run_of

METRICS: tuple[Metric, ...] = (
    m.RUN_ENERGY_BEFORE_USE,
    m.RUN_POWER_MAX,
    m.RUN_PHASE_SECONDS,
    m.RUN_PHASE_ENERGY,
    m.RUN_PHASE_WORK,
)
"""Metrics of the definition that no other sum of a fleet needs."""
_SERIES: tuple[Metric, ...] = (
    m.RUN_START,
    m.RUN_END,
    m.RUN_DURATION,
    m.RUN_GPU_INFO,
    m.RUN_ENERGY,
    m.RUN_ENERGY_UNCERTAINTY,
    m.RUN_ATTRIBUTED_ENERGY,
    m.RUN_WORK,
    *METRICS,
)


def joules_of_work(
    window: WindowTallies, identity: Callable[[Tally], RunKey]
) -> dict[tuple[RunKey, str], float]:
    """Return the energy by run and unit of work; see `wattline.contract.run.Run.unit_energy`.

    `identity` returns the run of a series, with one instance where nodes are not separate.
    """
    rows: defaultdict[RunKey, defaultdict[str, list[SeriesRow]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for metric in _SERIES:
        for tally in window.of(metric):
            if tally.labels.get("run_id"):
                row = SeriesRow(metric, tally.labels, tally.highest)
                rows[identity(tally)][run_of(tally)[0]].append(row)
    joules = {}
    for key, by_node in rows.items():
        parts = [
            from_rows(of_node, node)
            for node, of_node in by_node.items()
            if any(row.metric is m.RUN_START for row in of_node)
        ]
        if not parts:
            continue
        run = combine(parts)
        for unit, amount in run.work.items():
            each = run.unit_energy(unit)
            if each is not None:
                joules[key, unit] = each.energy.number * amount
    return joules
