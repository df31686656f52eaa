"""Jobs that share GPUs: what each of them gets, and what it costs."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, EXPERIMENT, NODE, NODE_KEY, NODE_RUN_KEY, Board, selector
from grafana.panel import Panel, Query

_CHOSEN = 'label_experiment=~"$experiment"'
_HAS_TENANT = 'label_tenant!=""'
_HAS_RUN = 'run_id!=""'
_NO_RUN = 'run_id=""'
_INFO = f"max by ({NODE_RUN_KEY}, label_tenant, label_mps) ({selector(m.RUN_INFO, _CHOSEN, _HAS_TENANT)})"
_JOIN = f"* on ({NODE_RUN_KEY}) group_left (label_tenant, label_mps) {_INFO}"
_LEGEND = "{{label_tenant}} {{run_id}}"
_SHARED = 'policy="idle_shared"'
_GPU = 'component="gpu"'
_OF_RUNS = selector(m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, _HAS_RUN)
_OF_NONE = selector(m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, _NO_RUN)

_RATE = Panel(
    "Work a second by tenant",
    "Each unit for itself, while the tenants run side by side.",
    "suffix:/s",
    (
        Query(
            f"sum by ({NODE_RUN_KEY}, unit) (rate({selector(m.RUN_WORK)}[$__rate_interval])) {_JOIN}",
            f"{_LEGEND} {{{{unit}}}}",
        ),
    ),
)
_POWER = Panel(
    "Power by tenant",
    "Each run's share of its GPUs, idle power divided among those that have a GPU; the sum is what the GPUs draw.",
    "watt",
    (Query(f"sum by ({NODE_RUN_KEY}) (rate({_OF_RUNS}[$__rate_interval])) {_JOIN}", _LEGEND),),
    "areas",
)
_ENERGY = Panel(
    "Energy by tenant",
    "Joules attributed since each run's begin.",
    "joule",
    (Query(f"sum by ({NODE_RUN_KEY}) ({_OF_RUNS}) {_JOIN}", _LEGEND),),
)
_PER_UNIT = Panel(
    "Energy per unit by tenant",
    "Attributed joules over work, both since the run's begin.",
    "joule",
    (
        Query(
            f"(sum by ({NODE_RUN_KEY}) ({_OF_RUNS}) / on ({NODE_RUN_KEY}) group_right () "
            f"(sum by ({NODE_RUN_KEY}, unit) ({selector(m.RUN_WORK)}) > 0)) {_JOIN}",
            f"{_LEGEND} {{{{unit}}}}",
        ),
    ),
)
_REST = Panel(
    "Power of no run",
    "Of the GPUs, the rest that belongs to no run.",
    "watt",
    (Query(f"sum by ({NODE_KEY}) (rate({_OF_NONE}[$__rate_interval]))", "{{instance}}"),),
)
_TENANTS = Panel(
    "Tenants",
    "The runs of now that have a tenant, and whether MPS was on.",
    "none",
    (Query(_INFO),),
    "table",
    columns={
        "label_tenant": "tenant",
        "run_id": "run",
        "label_mps": "MPS",
        "instance": "node",
        "cluster": "cluster",
        "Value": "",
    },
)

TENANTS = Board(
    "wattline-tenants",
    "Wattline: tenants",
    "Jobs that share GPUs: work, power and energy of each. Slowdown and fairness are told by `analyzer tenants`.",
    (CLUSTER, NODE, EXPERIMENT),
    (("Side by side", (_RATE, _POWER, _ENERGY, _PER_UNIT, _REST, _TENANTS)),),
    marks_runs=True,
)
