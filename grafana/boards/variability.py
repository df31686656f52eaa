"""How much GPUs differ."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, EXPERIMENT, NODE, NODE_KEY, NODE_RUN_KEY, Board, selector
from grafana.panel import Panel, Query

_GPU = 'engine="gpu"'
_OF_SM = 'domain="sm"'
_OF_GPU = 'component="gpu"'
_CHOSEN = 'label_experiment=~"$experiment"'
_HAS_EXPERIMENT = 'label_experiment!=""'
_MEASURE = 'phase="measure"'
_UTILIZATION = selector(m.GPU_UTILIZATION, _GPU)
_BUSY = f"({_UTILIZATION} > 0.5 and avg_over_time({_UTILIZATION}[$__rate_interval]) > 0.5)"
_LEGEND = "{{instance}} GPU {{gpu}}"


def _busy(expression: str) -> str:
    """Only while the GPU was busy: idle ones differ for other reasons."""
    return f"{expression} and on ({NODE_KEY}, uuid) {_BUSY}"


def _peak(metric: m.Metric, *more: str) -> str:
    return f"max_over_time({selector(metric, *more)}[$__range])"


_POWER = Panel(
    "Power of busy GPUs",
    "Of those that are busy for more than half of the time.",
    "watt",
    (Query(_busy(selector(m.GPU_POWER)), _LEGEND),),
)
_CLOCK = Panel(
    "SM clock of busy GPUs",
    "Under one power limit the better chips clock higher: variability shows here.",
    "hertz",
    (Query(_busy(selector(m.GPU_CLOCK, _OF_SM)), _LEGEND),),
)
_TEMPERATURE = Panel(
    "Temperature of busy GPUs",
    "A place with bad air shows here.",
    "celsius",
    (Query(_busy(selector(m.GPU_TEMPERATURE, 'sensor="gpu"')), _LEGEND),),
)
_SPREAD = Panel(
    "Spread of SM clocks",
    "Standard deviation over mean of the GPUs that are busy, by node.",
    "percentunit",
    (
        Query(
            f"stddev by ({NODE_KEY}) ({_busy(selector(m.GPU_CLOCK, _OF_SM))}) "
            f"/ avg by ({NODE_KEY}) ({_busy(selector(m.GPU_CLOCK, _OF_SM))})",
            "{{instance}}",
        ),
    ),
)
_INFO = f"max by ({NODE_RUN_KEY}, workload) ({_peak(m.RUN_INFO, _CHOSEN, _HAS_EXPERIMENT)})"
_GPUS = f"max by ({NODE_RUN_KEY}, gpu) ({_peak(m.RUN_GPU_INFO)})"
_ONLY_GPU = f"({_GPUS} and on ({NODE_RUN_KEY}) (count by ({NODE_RUN_KEY}) ({_GPUS}) == 1))"
_WORK = f"(max by ({NODE_RUN_KEY}, unit) ({_peak(m.RUN_PHASE_WORK, _MEASURE)}) > 0)"
_SECONDS = f"max by ({NODE_RUN_KEY}) ({_peak(m.RUN_PHASE_SECONDS, _MEASURE)})"
_JOULES = f"max by ({NODE_RUN_KEY}) ({_peak(m.RUN_PHASE_ENERGY, _MEASURE, _OF_GPU)})"


def _by_gpu(expression: str) -> str:
    return (
        f"avg by ({NODE_KEY}, gpu, workload, unit) (({expression} / on ({NODE_RUN_KEY}) group_right () {_WORK}) "
        f"* on ({NODE_RUN_KEY}) group_left (workload) {_INFO} * on ({NODE_RUN_KEY}) group_left (gpu) {_ONLY_GPU})"
    )


_PER_UNIT = Panel(
    "Time and energy per unit of work, by GPU",
    "Seconds and joules of the phase measure over the work done in it, the mean over the runs of the experiment that "
    "had this GPU alone.",
    "short",
    (Query(_by_gpu(_SECONDS)), Query(_by_gpu(_JOULES))),
    "table",
    width=24,
    columns={
        "instance": "node",
        "gpu": "GPU",
        "workload": "workload",
        "cluster": "cluster",
        "unit": "unit",
        "Value #A": "time per unit",
        "Value #B": "energy per unit",
    },
    units={"time per unit": "s", "energy per unit": "joule"},
)

VARIABILITY = Board(
    "wattline-variability",
    "Wattline: variability",
    "How much GPUs differ at the same work. Medians, outliers and intervals are told by `analyzer variability`.",
    (CLUSTER, NODE, EXPERIMENT),
    (("Busy GPUs", (_POWER, _CLOCK, _TEMPERATURE, _SPREAD)), ("Runs on one GPU", (_PER_UNIT,))),
    since="now-6h",
)
