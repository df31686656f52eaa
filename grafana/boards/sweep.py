"""Dashboard of power-limit sweeps; `analyzer recommend` gives a limit with its evidence."""

from __future__ import annotations

from grafana.board import (
    CLUSTER,
    EXPERIMENT,
    GPU_LEGEND,
    NODE,
    NODE_KEY,
    NODE_RUN_KEY,
    RUN_KEY,
    WORK,
    Board,
    peak,
    selector,
    succeeded,
)
from grafana.panel import Panel, Query, lines
from wattline.contract import metrics as m

_CHOSEN = 'label_experiment=~"$experiment"'
_BY_CAP = 'reason="sw_power_cap"'
_CAP = "label_power_limit_watts"
_CAPPED = f'{_CAP}!=""'
_GPU = 'component="gpu"'
_MEASURE = 'phase="measure"'
_LIKE = "workload, label_model, label_batch_size"
"""Labels that comparable runs have in common, together with the model of their GPUs (`name`)."""
_MEAN = "the mean over the successful runs of each power limit"
_RUN_COLUMNS = {
    "workload": "workload",
    "label_model": "model",
    "label_batch_size": "batch",
    "name": "GPU",
}
_COLUMNS = {_CAP: "power limit", **_RUN_COLUMNS}
_WATTS = {"power limit": "watt"}
_NONE = "No successful run with a power limit in the time range. Start some with workloads sweep."

_GPU_NAME = f"topk by ({NODE_KEY}, uuid) (1, max by ({NODE_KEY}, uuid, name) ({peak(m.GPU_INFO)}))"
"""One name for each GPU; a driver update can change the name."""
_GPU_NAMES = (
    f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, name) (max by ({NODE_RUN_KEY}, uuid) "
    f"({peak(m.RUN_GPU_INFO)}) "
    f"* on ({NODE_KEY}, uuid) group_left (name) {_GPU_NAME}))"
)
_RUNS = (
    f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, {_LIKE}, {_CAP}) "
    f"({peak(m.RUN_INFO, _CHOSEN, _CAPPED)}))"
)
_JOIN = (
    f"* on ({RUN_KEY}) group_left ({_LIKE}, {_CAP}) {succeeded(_RUNS)} * on ({RUN_KEY}) "
    f"group_left (name) {_GPU_NAMES}"
)
_JOULES = (
    f"sum by ({RUN_KEY}) (max by ({NODE_RUN_KEY}) ({peak(m.RUN_PHASE_ENERGY, _GPU, _MEASURE)}))"
)
_WORK = (
    f"sum by ({RUN_KEY}, unit) (max by ({NODE_RUN_KEY}, unit) ({peak(m.RUN_PHASE_WORK, _MEASURE)}))"
)
_SECONDS = f"(max by ({RUN_KEY}) ({peak(m.RUN_PHASE_SECONDS, _MEASURE)}) > 0)"


def _by_cap(expression: str, *more: str) -> str:
    return f"avg by ({', '.join((_LIKE, 'name', _CAP, *more))}) (({expression}) {_JOIN})"


_JOULES_PER_UNIT = _by_cap(WORK.energy_per_unit(), "unit")


def _points(title: str, description: str, unit: str, expr: str, columns: dict[str, str]) -> Panel:
    """Return a panel of points; `columns` follow the power limit and the common labels."""
    shown = {**_COLUMNS, **columns}
    return Panel(
        title,
        description,
        unit,
        (Query(expr),),
        "points",
        columns=shown,
        units=_WATTS,
        remedy=_NONE,
    )


_ENERGY_PER_UNIT = _points(
    "Energy per unit of work",
    "Energy of a run's GPUs in the phases in which the work was done, on shared GPUs the "
    f"attributed share; {_MEAN}.",
    "joule",
    _JOULES_PER_UNIT,
    {"unit": "unit", "Value": "per unit"},
)
_SPEED = _points(
    "Throughput",
    f"Units of work per second in the phase measure; {_MEAN}.",
    "suffix:/s",
    _by_cap(f"{_WORK} / on ({RUN_KEY}) group_left () {_SECONDS}", "unit"),
    {"unit": "unit", "Value": "throughput"},
)
_TIME = _points(
    "Duration of the phase measure", f"Seconds; {_MEAN}.", "s", _by_cap(_SECONDS), {"Value": "time"}
)
_ENERGY = _points(
    "Energy of the phase measure",
    f"Energy of all GPUs of a run; {_MEAN}.",
    "joule",
    _by_cap(_JOULES),
    {"Value": "energy"},
)
_LEAST = Panel(
    "Power limit of least energy",
    "Power limit with the least energy per unit of work. `analyzer recommend --experiment NAME` "
    "tests its significance "
    "and reports the cost in time.",
    "joule",
    (Query(f"bottomk by ({_LIKE}, name, unit) (1, {_JOULES_PER_UNIT})"),),
    "table",
    height=6,
    columns={**_RUN_COLUMNS, "unit": "unit", _CAP: "power limit, W", "Value": "per unit"},
    units={"per unit": "joule"},
    remedy=_NONE,
)
_CAPS = Panel(
    "Runs of each power limit",
    "Number of runs of each mean.",
    "none",
    (Query(f"count by ({_LIKE}, name, {_CAP}) (({_JOULES}) {_JOIN})"),),
    "table",
    height=6,
    columns={**_RUN_COLUMNS, _CAP: "power limit, W", "Value": "runs"},
    remedy=_NONE,
)
_LIMIT = Panel(
    "Power limit and power",
    "Enforced power limits and measured power. A limit that the power does not reach has no "
    "effect.",
    "watt",
    (
        Query(selector(m.GPU_POWER_LIMIT, 'kind="enforced"'), "limit, " + GPU_LEGEND),
        Query(selector(m.GPU_POWER), GPU_LEGEND),
    ),
)
_HELD = lines(
    "Time at the power limit",
    "Share of time in which the power limit reduced the clocks (sw_power_cap).",
    "percentunit",
    f"rate({selector(m.GPU_CLOCK_EVENT_SECONDS, _BY_CAP)}[$__rate_interval])",
    GPU_LEGEND,
)

SWEEP = Board(
    "wattline-sweep",
    "Wattline: power-limit sweep",
    "Energy per unit and throughput against the power limit. `analyzer recommend --experiment "
    "NAME` recommends a limit "
    "with its evidence.",
    (CLUSTER, NODE, EXPERIMENT),
    (
        ("By power limit", (_ENERGY_PER_UNIT, _SPEED, _ENERGY, _TIME, _LEAST, _CAPS)),
        ("During the sweep", (_LIMIT, _HELD)),
    ),
    since="now-6h",
    marks_runs=True,
)
