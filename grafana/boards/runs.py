"""Dashboard of all runs in the time range and of one run in detail."""

from __future__ import annotations

from grafana.board import (
    CLUSTER,
    GPU_LEGEND,
    MODEL,
    NODE,
    NODE_KEY,
    NODE_RUN_KEY,
    RUN,
    RUN_KEY,
    WORK,
    Board,
    peak,
    selector,
    without_label,
)
from grafana.panel import Panel, Query, lines
from wattline.contract import metrics as m

_ROWS = 200
"""Runs in a table, the newest; more rows overload a browser."""
_RUN = 'run_id="$run"'
_GPU = 'component="gpu"'
_AVERAGE = 'basis="average"'
_CHOSEN = 'label_model=~"$model"'
_SHARED = 'policy="idle_shared"'
_OF_RUN = 'run_id!=""'
_RUN_COLUMNS = {
    "run_id": "run",
    "workload": "workload",
    "label_model": "model",
    "cluster": "cluster",
}
_NO_RUN = "No run in the time range. Start one with workloads run -- COMMAND."
_NO_DATA = "The selected run has no data of this kind in the time range."


def _of_run(keys: str, metric: m.Metric, *more: str) -> str:
    """Return the sum over nodes and `keys`, which counts each series once."""
    inner = f"{NODE_RUN_KEY}, {keys}" if keys else NODE_RUN_KEY
    return f"sum by ({RUN_KEY}) (max by ({inner}) ({peak(metric, *more)}))"


_JOULES = _of_run("device", m.RUN_ENERGY, _GPU)
_NEWEST = f"topk({_ROWS}, max by ({RUN_KEY}) ({peak(m.RUN_START)}))"
_INFO = (
    f"(topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, workload, label_model) "
    f"({peak(m.RUN_INFO, _CHOSEN)})) "
    f"and on ({RUN_KEY}) {_NEWEST})"
)


def _named(expression: str) -> str:
    return f"{expression} * on ({RUN_KEY}) group_left (workload, label_model) {_INFO}"


_TABLE = Panel(
    "Runs",
    f"Runs in the time range, the newest {_ROWS}: energy of their GPUs and of all devices, energy "
    "per unit of their "
    "primary work, and emissions of all devices by average intensity. On shared GPUs, `energy, "
    "GPUs` is the whole GPU, "
    "and the next column and the energy per unit are the attributed share. The energy of a run "
    "shorter than a scrape "
    "interval is complete.",
    "short",
    (
        Query(_named(_JOULES)),
        Query(_named(f"max by ({RUN_KEY}) ({peak(m.RUN_DURATION)})")),
        Query(_named(without_label(WORK.primary(WORK.energy_per_unit()), "unit"))),
        Query(_named(_of_run("component, device", m.RUN_ENERGY))),
        Query(_named(_of_run("component, quality", m.RUN_EMISSIONS, _AVERAGE))),
        Query(_named(f"1000 * min by ({RUN_KEY}) ({peak(m.RUN_START)})")),
        Query(_named(_of_run("device", m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, _OF_RUN))),
    ),
    "table",
    width=24,
    height=10,
    columns={
        "Value #F": "start",
        **_RUN_COLUMNS,
        "Value #B": "duration",
        "Value #A": "energy, GPUs",
        "Value #G": "attributed share of GPUs",
        "Value #D": "energy, all devices",
        "Value #C": "per unit",
        "Value #E": "emissions",
    },
    units={
        "start": "dateTimeAsIso",
        "duration": "s",
        "energy, GPUs": "joule",
        "attributed share of GPUs": "joule",
        "energy, all devices": "joule",
        "per unit": "joule",
        "emissions": "massg",
    },
    remedy=_NO_RUN,
)
_RESULTS = Panel(
    "Results",
    "Results measured by the jobs; the unit is part of the result's name.",
    "none",
    (Query(_named(f"max by ({RUN_KEY}, name) ({peak(m.RUN_RESULT)})")),),
    "table",
    columns={**_RUN_COLUMNS, "name": "result", "Value": "value"},
    remedy="No run in the time range has results. Report them with the client's "
    "run.result(NAME=VALUE).",
)
_PER_UNIT = Panel(
    "Energy per unit of work",
    "Energy of a run's GPUs in the phases in which the work was done, divided by each unit of its "
    "work. On shared GPUs "
    "it is the attributed share of the whole run; without GPUs, the energy of the CPUs.",
    "joule",
    (Query(_named(WORK.energy_per_unit())),),
    "table",
    columns={**_RUN_COLUMNS, "unit": "unit", "Value": "energy per unit"},
    units={"energy per unit": "joule"},
    remedy="No run in the time range has work. Report it with the client's run.work(UNIT=AMOUNT).",
)


def _total(title: str, description: str, unit: str, expr: str, legend: str) -> Panel:
    """Return a panel of a counter; its maximum is its last value, even if one node's series ends
    early.
    """
    return lines(title, description, unit, expr, legend).with_calcs("max").without(data=_NO_DATA)


_WHOLE = f"sum by (component) ({selector(m.RUN_ENERGY, _RUN)})"
_ENERGY = _total(
    "Energy of the run",
    "Energy of the whole devices since the start of the run, by component.",
    "joule",
    _WHOLE,
    "{{component}}",
)
_POWER = lines(
    "Power of the run's GPUs",
    "Power at each scrape while the run was active; the run's energy is not computed from it.",
    "watt",
    f"{selector(m.GPU_POWER)} * on ({NODE_KEY}, uuid) group_left () max by ({NODE_KEY}, uuid) "
    f"({selector(m.RUN_GPU_INFO, _RUN)} unless on ({NODE_RUN_KEY}) {selector(m.RUN_END, _RUN)})",
    GPU_LEGEND,
).without(data="No scrape happened during the selected run; its energy is complete nevertheless.")
_WORK = _total(
    "Work",
    "Work that the job reported, by unit.",
    "short",
    f"sum by (unit) ({selector(m.RUN_WORK, _RUN)})",
    "{{unit}}",
)
_PHASES = _total(
    "Energy by phase",
    "Energy of the run's devices by phase and component.",
    "joule",
    f"sum by (phase, component) ({selector(m.RUN_PHASE_ENERGY, _RUN)})",
    "{{phase}} {{component}}",
)
_ATTRIBUTED = selector(m.RUN_ATTRIBUTED_ENERGY, _RUN, _OF_RUN, _SHARED)
_BEFORE_USE = selector(m.RUN_ENERGY_BEFORE_USE, _RUN, _OF_RUN)
_SHARE = Panel(
    "Attributed share of the devices",
    "Energy attributed under the policy idle_shared, and energy of the whole devices; they differ "
    "on shared devices.",
    "joule",
    (
        Query(f"sum by (component) ({_ATTRIBUTED} or {_BEFORE_USE})", "share, {{component}}"),
        Query(_WHOLE, "whole, {{component}}"),
    ),
    calcs=("max",),
    remedy=_NO_DATA,
)
_EMISSIONS = _total(
    "Emissions of the run",
    "g CO2eq by basis and quality. Average and marginal emissions must not be added.",
    "massg",
    f"sum by (basis, quality) ({selector(m.RUN_EMISSIONS, _RUN)})",
    "{{basis}}, {{quality}}",
)

RUNS = Board(
    "wattline-runs",
    "Wattline: runs",
    "A table of runs with energy, energy per unit and emissions, and one run in detail.",
    (CLUSTER, NODE, MODEL, RUN),
    (
        ("Runs", (_TABLE, _PER_UNIT, _RESULTS)),
        ("Run $run", (_ENERGY, _POWER, _WORK, _PHASES, _SHARE, _EMISSIONS)),
    ),
    since="now-6h",
    marks_runs=True,
)
