"""All runs of the time range, and one of them in detail."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, GPU_LEGEND, MODEL, NODE, NODE_KEY, NODE_RUN_KEY, RUN, RUN_KEY, Board, peak, selector
from grafana.panel import Panel, Query, lines

_RUN = 'run_id="$run"'
_GPU = 'component="gpu"'
_AVERAGE = 'basis="average"'
_GENERATED = 'unit="generated_tokens"'
_CHOSEN = 'label_model=~"$model"'
_SHARED = 'policy="idle_shared"'
_OF_RUN = 'run_id!=""'
_WHOSE = {"run_id": "run", "workload": "workload", "label_model": "model", "cluster": "cluster"}
_NO_RUN = "No run in the time range: workloads run -- COMMAND makes one."
_NOT_CHOSEN = "The run that is chosen above has none of it in the time range."


def _of_run(keys: str, metric: m.Metric, *more: str) -> str:
    """The sum over nodes and `keys`, each once however often it was scraped."""
    inner = f"{NODE_RUN_KEY}, {keys}" if keys else NODE_RUN_KEY
    return f"sum by ({RUN_KEY}) (max by ({inner}) ({peak(metric, *more)}))"


_JOULES = _of_run("device", m.RUN_ENERGY, _GPU)
_TOKENS = _of_run("", m.RUN_WORK, _GENERATED)
_INFO = f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, workload, label_model) ({peak(m.RUN_INFO, _CHOSEN)}))"


def _named(expression: str) -> str:
    return f"{expression} * on ({RUN_KEY}) group_left (workload, label_model) {_INFO}"


_TABLE = Panel(
    "Runs",
    "Every run that was seen in the time range: energy of its GPUs and of all its devices, per generated token, and "
    "emissions of all its devices by average intensity. Of GPUs that runs share each has all, and beside it its share. "
    "A run shorter than a scrape interval has all of its joules.",
    "short",
    (
        Query(_named(_JOULES)),
        Query(_named(f"max by ({RUN_KEY}) ({peak(m.RUN_DURATION)})")),
        Query(_named(f"({_JOULES} / ({_TOKENS} > 0))")),
        Query(_named(_of_run("component, device", m.RUN_ENERGY))),
        Query(_named(_of_run("component, quality", m.RUN_EMISSIONS, _AVERAGE))),
        Query(_named(f"1000 * min by ({RUN_KEY}) ({peak(m.RUN_START)})")),
        Query(_named(_of_run("device", m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, _OF_RUN))),
    ),
    "table",
    width=24,
    height=10,
    columns={
        "Value #F": "begin",
        **_WHOSE,
        "Value #B": "duration",
        "Value #A": "energy, GPUs",
        "Value #G": "its share of GPUs",
        "Value #D": "energy, all devices",
        "Value #C": "per token",
        "Value #E": "emissions",
    },
    units={
        "begin": "dateTimeAsIso",
        "duration": "s",
        "energy, GPUs": "joule",
        "its share of GPUs": "joule",
        "energy, all devices": "joule",
        "per token": "joule",
        "emissions": "massg",
    },
    remedy=_NO_RUN,
)
_RESULTS = Panel(
    "Results",
    "What the jobs measured themselves; the unit is in the name of the result.",
    "none",
    (Query(_named(f"max by ({RUN_KEY}, name) ({peak(m.RUN_RESULT)})")),),
    "table",
    columns={**_WHOSE, "name": "result", "Value": "value"},
    remedy="No run in the time range has results: a client's run.result(NAME=VALUE) keeps them.",
)
_PER_UNIT = Panel(
    "Energy per unit of work",
    "Joules of a run's GPUs over each kind of work that it did; of GPUs that runs share each has all.",
    "joule",
    (
        Query(
            _named(
                f"({_JOULES} / on ({RUN_KEY}) group_right () "
                f"(sum by ({RUN_KEY}, unit) (max by ({NODE_RUN_KEY}, unit) ({peak(m.RUN_WORK)})) > 0))"
            )
        ),
    ),
    "table",
    columns={**_WHOSE, "unit": "unit", "Value": "energy per unit"},
    units={"energy per unit": "joule"},
    remedy="No run in the time range has work: a client's run.work(UNIT=AMOUNT) counts it.",
)


def _total(title: str, description: str, unit: str, expr: str, legend: str) -> Panel:
    """Of a counter, whose highest is its last: the series of one node of several may end before the others'."""
    return lines(title, description, unit, expr, legend).telling("max").without(data=_NOT_CHOSEN)


_WHOLE = f"sum by (component) ({selector(m.RUN_ENERGY, _RUN)})"
_ENERGY = _total(
    "Energy of the run",
    "By component, since its begin: the whole devices between begin and end.",
    "joule",
    _WHOLE,
    "{{component}}",
)
_POWER = lines(
    "Power of the run's GPUs",
    "At each scrape while the run was on; the energy does not come from this line.",
    "watt",
    f"{selector(m.GPU_POWER)} * on ({NODE_KEY}, uuid) group_left () max by ({NODE_KEY}, uuid) "
    f"({selector(m.RUN_GPU_INFO, _RUN)} unless on ({NODE_RUN_KEY}) {selector(m.RUN_END, _RUN)})",
    GPU_LEGEND,
).without(data="No scrape fell into the run that is chosen above; its energy is whole all the same.")
_WORK = _total(
    "Work",
    "What the job has reported, each unit for itself.",
    "short",
    f"sum by (unit) ({selector(m.RUN_WORK, _RUN)})",
    "{{unit}}",
)
_PHASES = _total(
    "Energy by phase",
    "Of the run's devices, by component.",
    "joule",
    f"sum by (phase, component) ({selector(m.RUN_PHASE_ENERGY, _RUN)})",
    "{{phase}} {{component}}",
)
_ATTRIBUTED = selector(m.RUN_ATTRIBUTED_ENERGY, _RUN, _OF_RUN, _SHARED)
_SHARE = Panel(
    "The run's share of its devices",
    "Attributed energy under the policy idle_shared, beside the whole devices': apart where others used them.",
    "joule",
    (Query(f"sum by (component) ({_ATTRIBUTED})", "share, {{component}}"), Query(_WHOLE, "whole, {{component}}")),
    calcs=("max",),
    remedy=_NOT_CHOSEN,
)
_EMISSIONS = _total(
    "Emissions of the run",
    "gCO2eq by basis and quality; average and marginal answer different questions and are never added.",
    "massg",
    f"sum by (basis, quality) ({selector(m.RUN_EMISSIONS, _RUN)})",
    "{{basis}}, {{quality}}",
)

RUNS = Board(
    "wattline-runs",
    "Wattline: runs",
    "A table of runs with joules, joules per token and grams, and one run in detail.",
    (CLUSTER, NODE, MODEL, RUN),
    (
        ("Runs", (_TABLE, _PER_UNIT, _RESULTS)),
        ("The run $run", (_ENERGY, _POWER, _WORK, _PHASES, _SHARE, _EMISSIONS)),
    ),
    since="now-6h",
    marks_runs=True,
)
