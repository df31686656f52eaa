"""Dashboard of jobs that share GPUs."""

from __future__ import annotations

from grafana.board import CLUSTER, EXPERIMENT, NODE, NODE_KEY, NODE_LEGEND, RUN_KEY, Board, selector
from grafana.panel import Panel, Query, lines
from wattline.contract import metrics as m

_CHOSEN = 'label_experiment=~"$experiment"'
_HAS_TENANT = 'label_tenant!=""'
_HAS_RUN = 'run_id!=""'
_NO_RUN = 'run_id=""'
_LABELS = "label_tenant, label_mps"
_INFO = (
    f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, {_LABELS}) "
    f"({selector(m.RUN_INFO, _CHOSEN, _HAS_TENANT)}))"
)
_OPEN = f"({_INFO} unless on ({RUN_KEY}) {selector(m.RUN_END)})"
_JOIN = f"* on ({RUN_KEY}) group_left ({_LABELS})"
_LEGEND = "{{label_tenant}} {{run_id}}"
_SHARED = 'policy="idle_shared"'
_GPU = 'component="gpu"'
_ATTRIBUTED = selector(m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, _HAS_RUN)
_UNATTRIBUTED = selector(m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, _NO_RUN)
_NONE = "No run with the label tenant in the time range. Set it with workloads run -l tenant=NAME."

_RATE = lines(
    "Work per second by tenant",
    "Rate of each unit of work while the tenants run.",
    "suffix:/s",
    f"sum by ({RUN_KEY}, unit) (rate({selector(m.RUN_WORK)}[$__rate_interval])) {_JOIN} {_OPEN}",
    _LEGEND + " {{unit}}",
).without(data=_NONE)
_POWER = Panel(
    "Power by tenant",
    "Attributed share of each run, with idle power divided among the runs of a GPU; the sum is the "
    "GPUs' power.",
    "watt",
    (
        Query(
            f"sum by ({RUN_KEY}) (rate({_ATTRIBUTED}[$__rate_interval])) {_JOIN} {_OPEN}", _LEGEND
        ),
    ),
    "areas",
    remedy=_NONE,
)
_ENERGY = (
    lines(
        "Energy by tenant",
        "Energy attributed since the start of each run.",
        "joule",
        f"sum by ({RUN_KEY}) ({_ATTRIBUTED}) {_JOIN} {_INFO}",
        _LEGEND,
    )
    .with_calcs("max")
    .without(data=_NONE)
)
_PER_UNIT = (
    lines(
        "Energy per unit by tenant",
        "Attributed energy divided by work, both since the start of an active run. The dashboard "
        "Runs and `analyzer "
        "report` show the same for a run on a shared GPU; an ended run that was alone counts the "
        "phases of its work.",
        "joule",
        f"(sum by ({RUN_KEY}) ({_ATTRIBUTED}) / on ({RUN_KEY}) group_right () "
        f"(sum by ({RUN_KEY}, unit) ({selector(m.RUN_WORK)}) > 0)) {_JOIN} {_OPEN}",
        _LEGEND + " {{unit}}",
    )
    .with_calcs("lastNotNull")
    .without(data=_NONE)
)
_REST = lines(
    "Unattributed power",
    "Power of the GPUs that is attributed to no run.",
    "watt",
    f"sum by ({NODE_KEY}) (rate({_UNATTRIBUTED}[$__rate_interval]))",
    NODE_LEGEND,
)
_TENANTS = Panel(
    "Tenants",
    "Active runs with a tenant at the end of the time range, and the state of MPS.",
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
    "Work, power and energy of jobs that share GPUs. `analyzer tenants` reports slowdown and "
    "fairness.",
    (CLUSTER, NODE, EXPERIMENT),
    (("Concurrent tenants", (_RATE, _POWER, _ENERGY, _PER_UNIT, _REST, _TENANTS)),),
    marks_runs=True,
)
