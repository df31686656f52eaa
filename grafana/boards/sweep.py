"""A sweep of power limits: energy, time and speed by cap. What to set, and how sure that is: `analyzer recommend`."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, EXPERIMENT, NODE, NODE_RUN_KEY, RUN_KEY, Board, selector
from grafana.panel import Panel, Query

_CHOSEN = 'label_experiment=~"$experiment"'
_BY_CAP = 'reason="sw_power_cap"'
_CAP = "label_power_limit_watts"
_CAPPED = f'{_CAP}!=""'
_GPU = 'component="gpu"'
_MEASURE = 'phase="measure"'
_MEAN = "the mean over the runs of each cap"
_COLUMNS = {_CAP: "power limit", "workload": "workload"}
_WATTS = {"power limit": "watt"}


def _peak(metric: m.Metric, *more: str) -> str:
    return f"max_over_time({selector(metric, *more)}[$__range])"


_INFO = f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, workload, {_CAP}) ({_peak(m.RUN_INFO, _CHOSEN, _CAPPED)}))"
_JOIN = f"* on ({RUN_KEY}) group_left (workload, {_CAP}) {_INFO}"
_JOULES = f"sum by ({RUN_KEY}) (max by ({NODE_RUN_KEY}) ({_peak(m.RUN_PHASE_ENERGY, _GPU, _MEASURE)}))"
_WORK = f"sum by ({RUN_KEY}, unit) (max by ({NODE_RUN_KEY}, unit) ({_peak(m.RUN_PHASE_WORK, _MEASURE)}))"
_SECONDS = f"max by ({RUN_KEY}) ({_peak(m.RUN_PHASE_SECONDS, _MEASURE)})"


def _by_cap(expression: str) -> str:
    return f"avg by (workload, {_CAP}) (({expression}) {_JOIN})"


def _by_unit(expression: str) -> str:
    return f"avg by (workload, {_CAP}, unit) (({expression}) {_JOIN})"


_JOULES_PER_UNIT = _by_unit(f"{_JOULES} / on ({RUN_KEY}) group_right () ({_WORK} > 0)")

_ENERGY_PER_UNIT = Panel(
    "Energy per unit of work",
    f"Joules of all GPUs of a run in its phase measure, over the work done in it; {_MEAN}.",
    "joule",
    (Query(_JOULES_PER_UNIT),),
    "points",
    columns={**_COLUMNS, "unit": "unit", "Value": "per unit"},
    units=_WATTS,
)
_SPEED = Panel(
    "Throughput",
    f"Units of work a second in the phase measure; {_MEAN}.",
    "suffix:/s",
    (Query(_by_unit(f"{_WORK} / on ({RUN_KEY}) group_left () {_SECONDS}")),),
    "points",
    columns={**_COLUMNS, "unit": "unit", "Value": "throughput"},
    units=_WATTS,
)
_LEAST = Panel(
    "Cap of least energy",
    "The cap whose runs took the fewest joules per unit of work. Whether that is more than chance, and what it costs "
    "in time, is told by `analyzer recommend --experiment NAME`.",
    "joule",
    (Query(f"bottomk by (workload, unit) (1, {_JOULES_PER_UNIT})"),),
    "table",
    height=6,
    columns={"workload": "workload", "unit": "unit", _CAP: "cap, W", "Value": "per unit"},
    units={"per unit": "joule"},
)
_CAPS = Panel(
    "Runs of each cap",
    "How many runs each mean is of.",
    "none",
    (Query(f"count by (workload, {_CAP}) (({_JOULES}) {_JOIN})"),),
    "table",
    height=6,
    columns={"workload": "workload", _CAP: "cap, W", "Value": "runs"},
)
_TIME = Panel(
    "Time of the phase measure",
    f"Seconds; {_MEAN}.",
    "s",
    (Query(_by_cap(_SECONDS)),),
    "points",
    columns={**_COLUMNS, "Value": "time"},
    units=_WATTS,
)
_ENERGY = Panel(
    "Energy of the phase measure",
    f"Joules of all GPUs of a run; {_MEAN}.",
    "joule",
    (Query(_by_cap(_JOULES)),),
    "points",
    columns={**_COLUMNS, "Value": "energy"},
    units=_WATTS,
)
_LIMIT = Panel(
    "Power limit and power",
    "The caps as they were set, and what the GPUs drew: where the line does not reach the limit, the cap did nothing.",
    "watt",
    (
        Query(selector(m.GPU_POWER_LIMIT, 'kind="enforced"'), "limit, {{instance}} GPU {{gpu}}"),
        Query(selector(m.GPU_POWER), "{{instance}} GPU {{gpu}}"),
    ),
)
_HELD = Panel(
    "Time under the cap",
    "Share of time for which the power limit held the clocks down (sw_power_cap).",
    "percentunit",
    (
        Query(
            f"rate({selector(m.GPU_CLOCK_EVENT_SECONDS, _BY_CAP)}[$__rate_interval])",
            "{{instance}} GPU {{gpu}}",
        ),
    ),
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
