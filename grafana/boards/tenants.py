"""Jobs that share GPUs: what each of them gets, and what it costs."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, EXPERIMENT, NODE, NODE_KEY, NODE_LEGEND, RUN_KEY, Board, selector
from grafana.panel import Panel, Query, lines

_CHOSEN = 'label_experiment=~"$experiment"'
_HAS_TENANT = 'label_tenant!=""'
_HAS_RUN = 'run_id!=""'
_NO_RUN = 'run_id=""'
_LABELS = "label_tenant, label_mps"
_INFO = f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, {_LABELS}) ({selector(m.RUN_INFO, _CHOSEN, _HAS_TENANT)}))"
_OPEN = f"({_INFO} unless on ({RUN_KEY}) {selector(m.RUN_END)})"
_JOIN = f"* on ({RUN_KEY}) group_left ({_LABELS})"
_LEGEND = "{{label_tenant}} {{run_id}}"
_SHARED = 'policy="idle_shared"'
_GPU = 'component="gpu"'
_OF_RUNS = selector(m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, _HAS_RUN)
_OF_NONE = selector(m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, _NO_RUN)
_NONE = "No run with the label tenant in the time range: workloads run -l tenant=NAME gives it one."

_RATE = lines(
    "Work a second by tenant",
    "Each unit for itself, while the tenants run side by side.",
    "suffix:/s",
    f"sum by ({RUN_KEY}, unit) (rate({selector(m.RUN_WORK)}[$__rate_interval])) {_JOIN} {_OPEN}",
    _LEGEND + " {{unit}}",
).without(data=_NONE)
_POWER = Panel(
    "Power by tenant",
    "Each run's share of its GPUs, idle power divided among those that have a GPU; the sum is what the GPUs draw.",
    "watt",
    (Query(f"sum by ({RUN_KEY}) (rate({_OF_RUNS}[$__rate_interval])) {_JOIN} {_OPEN}", _LEGEND),),
    "areas",
    remedy=_NONE,
)
_ENERGY = (
    lines(
        "Energy by tenant",
        "Joules attributed since each run's begin.",
        "joule",
        f"sum by ({RUN_KEY}) ({_OF_RUNS}) {_JOIN} {_INFO}",
        _LEGEND,
    )
    .telling("max")
    .without(data=_NONE)
)
_PER_UNIT = (
    lines(
        "Energy per unit by tenant",
        "Attributed joules over work, both since the run's begin.",
        "joule",
        f"(sum by ({RUN_KEY}) ({_OF_RUNS}) / on ({RUN_KEY}) group_right () "
        f"(sum by ({RUN_KEY}, unit) ({selector(m.RUN_WORK)}) > 0)) {_JOIN} {_OPEN}",
        _LEGEND + " {{unit}}",
    )
    .telling("lastNotNull")
    .without(data=_NONE)
)
_REST = lines(
    "Power of no run",
    "Of the GPUs, the rest that belongs to no run.",
    "watt",
    f"sum by ({NODE_KEY}) (rate({_OF_NONE}[$__rate_interval]))",
    NODE_LEGEND,
)
_TENANTS = Panel(
    "Tenants",
    "The runs that have a tenant and are on at the end of the time range, and whether MPS is.",
    "none",
    (Query(_OPEN),),
    "table",
    columns={
        "label_tenant": "tenant",
        "run_id": "run",
        "label_mps": "MPS",
        "cluster": "cluster",
        "Value": "",
    },
    remedy=_NONE,
)

TENANTS = Board(
    "wattline-tenants",
    "Wattline: tenants",
    "Jobs that share GPUs: work, power and energy of each. Slowdown and fairness are told by `analyzer tenants`.",
    (CLUSTER, NODE, EXPERIMENT),
    (("Side by side", (_RATE, _POWER, _ENERGY, _PER_UNIT, _REST, _TENANTS)),),
    marks_runs=True,
)
