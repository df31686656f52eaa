"""A sweep of power limits: energy, time and speed by cap. What to set, and how sure that is: `analyzer recommend`."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import (
    CLUSTER,
    EXPERIMENT,
    GPU_LEGEND,
    NODE,
    NODE_KEY,
    NODE_RUN_KEY,
    RUN_KEY,
    Board,
    ended_well,
    peak,
    selector,
)
from grafana.panel import Panel, Query, lines

_CHOSEN = 'label_experiment=~"$experiment"'
_BY_CAP = 'reason="sw_power_cap"'
_CAP = "label_power_limit_watts"
_CAPPED = f'{_CAP}!=""'
_GPU = 'component="gpu"'
_MEASURE = 'phase="measure"'
_LIKE = "workload, label_model, label_batch_size"
"""What runs must have in common, beside the kind of their GPUs (`name`), to be compared."""
_MEAN = "the mean over the runs of each cap that ended well"
_WHOSE = {"workload": "workload", "label_model": "model", "label_batch_size": "batch", "name": "GPU"}
_COLUMNS = {_CAP: "power limit", **_WHOSE}
_WATTS = {"power limit": "watt"}
_NONE = "No run with a power limit ended well in the time range: workloads sweep makes them."

_CARD = f"topk by ({NODE_KEY}, uuid) (1, max by ({NODE_KEY}, uuid, name) ({peak(m.GPU_INFO)}))"
"""One name of each card, which has another one after an update of its driver."""
_CARDS = (
    f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, name) (max by ({NODE_RUN_KEY}, uuid) ({peak(m.RUN_GPU_INFO)}) "
    f"* on ({NODE_KEY}, uuid) group_left (name) {_CARD}))"
)
_RUNS = f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, {_LIKE}, {_CAP}) ({peak(m.RUN_INFO, _CHOSEN, _CAPPED)}))"
_JOIN = f"* on ({RUN_KEY}) group_left ({_LIKE}, {_CAP}) {ended_well(_RUNS)} * on ({RUN_KEY}) group_left (name) {_CARDS}"
_JOULES = f"sum by ({RUN_KEY}) (max by ({NODE_RUN_KEY}) ({peak(m.RUN_PHASE_ENERGY, _GPU, _MEASURE)}))"
_WORK = f"sum by ({RUN_KEY}, unit) (max by ({NODE_RUN_KEY}, unit) ({peak(m.RUN_PHASE_WORK, _MEASURE)}))"
_SECONDS = f"(max by ({RUN_KEY}) ({peak(m.RUN_PHASE_SECONDS, _MEASURE)}) > 0)"


def _by_cap(expression: str, *more: str) -> str:
    return f"avg by ({', '.join((_LIKE, 'name', _CAP, *more))}) (({expression}) {_JOIN})"


_JOULES_PER_UNIT = _by_cap(f"{_JOULES} / on ({RUN_KEY}) group_right () ({_WORK} > 0)", "unit")


def _points(title: str, description: str, unit: str, expr: str, columns: dict[str, str]) -> Panel:
    """`columns` come behind the cap and what the runs have in common."""
    shown = {**_COLUMNS, **columns}
    return Panel(title, description, unit, (Query(expr),), "points", columns=shown, units=_WATTS, remedy=_NONE)


_ENERGY_PER_UNIT = _points(
    "Energy per unit of work",
    f"Joules of all GPUs of a run in its phase measure, over the work done in it; {_MEAN}.",
    "joule",
    _JOULES_PER_UNIT,
    {"unit": "unit", "Value": "per unit"},
)
_SPEED = _points(
    "Throughput",
    f"Units of work a second in the phase measure; {_MEAN}.",
    "suffix:/s",
    _by_cap(f"{_WORK} / on ({RUN_KEY}) group_left () {_SECONDS}", "unit"),
    {"unit": "unit", "Value": "throughput"},
)
_TIME = _points("Time of the phase measure", f"Seconds; {_MEAN}.", "s", _by_cap(_SECONDS), {"Value": "time"})
_ENERGY = _points(
    "Energy of the phase measure",
    f"Joules of all GPUs of a run; {_MEAN}.",
    "joule",
    _by_cap(_JOULES),
    {"Value": "energy"},
)
_LEAST = Panel(
    "Cap of least energy",
    "The cap whose runs took the fewest joules per unit of work. Whether that is more than chance, and what it costs "
    "in time, is told by `analyzer recommend --experiment NAME`.",
    "joule",
    (Query(f"bottomk by ({_LIKE}, name, unit) (1, {_JOULES_PER_UNIT})"),),
    "table",
    height=6,
    columns={**_WHOSE, "unit": "unit", _CAP: "cap, W", "Value": "per unit"},
    units={"per unit": "joule"},
    remedy=_NONE,
)
_CAPS = Panel(
    "Runs of each cap",
    "How many runs each mean is of.",
    "none",
    (Query(f"count by ({_LIKE}, name, {_CAP}) (({_JOULES}) {_JOIN})"),),
    "table",
    height=6,
    columns={**_WHOSE, _CAP: "cap, W", "Value": "runs"},
    remedy=_NONE,
)
_LIMIT = Panel(
    "Power limit and power",
    "The caps as they were set, and what the GPUs drew: where the line does not reach the limit, the cap did nothing.",
    "watt",
    (
        Query(selector(m.GPU_POWER_LIMIT, 'kind="enforced"'), "limit, " + GPU_LEGEND),
        Query(selector(m.GPU_POWER), GPU_LEGEND),
    ),
)
_HELD = lines(
    "Time under the cap",
    "Share of time for which the power limit held the clocks down (sw_power_cap).",
    "percentunit",
    f"rate({selector(m.GPU_CLOCK_EVENT_SECONDS, _BY_CAP)}[$__rate_interval])",
    GPU_LEGEND,
)

SWEEP = Board(
    "wattline-sweep",
    "Wattline: cap sweep",
    "Energy per unit and throughput against the power limit. The advised cap, with its evidence, is told by "
    "`analyzer recommend --experiment NAME`.",
    (CLUSTER, NODE, EXPERIMENT),
    (
        ("By cap", (_ENERGY_PER_UNIT, _SPEED, _ENERGY, _TIME, _LEAST, _CAPS)),
        ("While it ran", (_LIMIT, _HELD)),
    ),
    since="now-6h",
    marks_runs=True,
)
