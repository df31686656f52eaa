"""All runs of the time range, and one of them in detail."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, MODEL, NODE, NODE_KEY, NODE_RUN_KEY, RUN, RUN_KEY, Board, selector
from grafana.panel import Panel, Query

_RUN = 'run_id="$run"'
_GPU = 'component="gpu"'
_AVERAGE = 'basis="average"'
_GENERATED = 'unit="generated_tokens"'
_CHOSEN = 'label_model=~"$model"'
_SHARED = 'policy="idle_shared"'


def _peak(metric: m.Metric, *more: str) -> str:
    """The last of a run's counter in the range: it begins at 0 with the run and stays for ten minutes after."""
    return f"max_over_time({selector(metric, *more)}[$__range])"


def _of_run(keys: str, metric: m.Metric, *more: str) -> str:
    """The sum over nodes and `keys`, each once however often it was scraped."""
    inner = f"{NODE_RUN_KEY}, {keys}" if keys else NODE_RUN_KEY
    return f"sum by ({RUN_KEY}) (max by ({inner}) ({_peak(metric, *more)}))"


_JOULES = _of_run("device", m.RUN_ENERGY, _GPU)
_TOKENS = _of_run("", m.RUN_WORK, _GENERATED)
_INFO = f"topk by ({RUN_KEY}) (1, max by ({RUN_KEY}, workload, label_model) ({_peak(m.RUN_INFO, _CHOSEN)}))"


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
        Query(_named(f"max by ({RUN_KEY}) ({_peak(m.RUN_DURATION)})")),
        Query(_named(f"({_JOULES} / ({_TOKENS} > 0))")),
        Query(_named(_of_run("component, device", m.RUN_ENERGY))),
        Query(_named(_of_run("component, quality", m.RUN_EMISSIONS, _AVERAGE))),
        Query(_named(f"1000 * min by ({RUN_KEY}) ({_peak(m.RUN_START)})")),
        Query(_named(_of_run("device", m.RUN_ATTRIBUTED_ENERGY, _GPU, _SHARED, 'run_id!=""'))),
    ),
    "table",
    width=24,
    height=10,
    columns={
        "Value #F": "begin",
        "run_id": "run",
        "workload": "workload",
        "label_model": "model",
        "cluster": "cluster",
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
)
_RESULTS = Panel(
    "Results",
    "What the jobs measured themselves; the unit is in the name of the result.",
    "none",
    (Query(_named(f"max by ({RUN_KEY}, name) ({_peak(m.RUN_RESULT)})")),),
    "table",
    columns={
        "run_id": "run",
        "workload": "workload",
        "label_model": "model",
        "cluster": "cluster",
        "name": "result",
        "Value": "value",
    },
)
_PER_UNIT = Panel(
    "Energy per unit of work",
    "Joules of a run's GPUs over each kind of work that it did; of GPUs that runs share each has all.",
    "joule",
    (
        Query(
            _named(
                f"({_JOULES} / on ({RUN_KEY}) group_right () "
                f"(sum by ({RUN_KEY}, unit) (max by ({NODE_RUN_KEY}, unit) ({_peak(m.RUN_WORK)})) > 0))"
            )
        ),
    ),
    "table",
    columns={
        "run_id": "run",
        "workload": "workload",
        "label_model": "model",
        "cluster": "cluster",
        "unit": "unit",
        "Value": "energy per unit",
    },
    units={"energy per unit": "joule"},
)
_ENERGY = Panel(
    "Energy of the run",
    "By component, since its begin: the whole devices between begin and end.",
    "joule",
    (Query(f"sum by (component) ({selector(m.RUN_ENERGY, _RUN)})", "{{component}}"),),
)
_POWER = Panel(
    "Power of the run's GPUs",
    "At each scrape; the energy does not come from this line.",
    "watt",
    (
        Query(
            f"{selector(m.GPU_POWER)} * on ({NODE_KEY}, uuid) group_left () "
            f"max by ({NODE_KEY}, uuid) ({selector(m.RUN_GPU_INFO, _RUN)})",
            "{{instance}} GPU {{gpu}}",
        ),
    ),
)
_WORK = Panel(
    "Work",
    "What the job has reported, each unit for itself.",
    "short",
    (Query(f"sum by (unit) ({selector(m.RUN_WORK, _RUN)})", "{{unit}}"),),
)
_PHASES = Panel(
    "Energy by phase",
    "Of the run's devices, by component.",
    "joule",
    (Query(f"sum by (phase, component) ({selector(m.RUN_PHASE_ENERGY, _RUN)})", "{{phase}} {{component}}"),),
)
_SHARE = Panel(
    "The run's share of its devices",
    "Attributed energy under the policy idle_shared, beside the whole devices': apart where others used them.",
    "joule",
    (
        Query(f"sum by (component) ({selector(m.RUN_ATTRIBUTED_ENERGY, _RUN, _SHARED)})", "share, {{component}}"),
        Query(f"sum by (component) ({selector(m.RUN_ENERGY, _RUN)})", "whole, {{component}}"),
    ),
)
_EMISSIONS = Panel(
    "Emissions of the run",
    "gCO2eq by basis and quality; average and marginal answer different questions and are never added.",
    "massg",
    (Query(f"sum by (basis, quality) ({selector(m.RUN_EMISSIONS, _RUN)})", "{{basis}}, {{quality}}"),),
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
