"""Dashboard of differences between GPUs."""

from __future__ import annotations

from grafana.board import (
    CLUSTER,
    EXPERIMENT,
    GPU_LEGEND,
    NODE,
    NODE_KEY,
    NODE_LEGEND,
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

_GPU = 'engine="gpu"'
_OF_SM = 'domain="sm"'
_CHOSEN = 'label_experiment=~"$experiment"'
_HAS_EXPERIMENT = 'label_experiment!=""'
_MEASURE = 'phase="measure"'
_UTILIZATION = selector(m.GPU_UTILIZATION, _GPU)
_BUSY = f"({_UTILIZATION} > 0.5 and avg_over_time({_UTILIZATION}[$__rate_interval]) > 0.5)"
_IDLE = "No GPU was busy in the time range."


def _busy(expression: str) -> str:
    """Restrict an expression to busy GPUs; idle GPUs differ for other reasons."""
    return f"{expression} and on ({NODE_KEY}, uuid) {_BUSY}"


_POWER = lines(
    "Power of busy GPUs",
    "Power of GPUs that are busy for more than half of the time.",
    "watt",
    _busy(selector(m.GPU_POWER)),
    GPU_LEGEND,
).without(data=_IDLE)
_SM_CLOCK = _busy(selector(m.GPU_CLOCK, _OF_SM))
_CLOCK = lines(
    "SM clock of busy GPUs",
    "Under the same power limit, better chips reach higher clocks.",
    "hertz",
    _SM_CLOCK,
    GPU_LEGEND,
).without(data=_IDLE)
_TEMPERATURE = lines(
    "Temperature of busy GPUs",
    "Poor cooling of a slot shows here.",
    "celsius",
    _busy(selector(m.GPU_TEMPERATURE, 'sensor="gpu"')),
    GPU_LEGEND,
).without(data=_IDLE)
_SPREAD = lines(
    "Spread of SM clocks",
    "Standard deviation divided by mean of a node's busy GPUs, while at least two are busy.",
    "percentunit",
    f"stddev by ({NODE_KEY}) ({_SM_CLOCK}) / avg by ({NODE_KEY}) ({_SM_CLOCK}) "
    f"and on ({NODE_KEY}) count by ({NODE_KEY}) ({_SM_CLOCK}) > 1",
    NODE_LEGEND,
).without(data="Needs two busy GPUs on a node.")

_LIKE = "workload, label_model, label_batch_size, label_power_limit_watts"
"""Labels that comparable runs have in common."""
_INFO = (
    f"topk by ({NODE_RUN_KEY}) (1, max by ({NODE_RUN_KEY}, {_LIKE}) "
    f"({peak(m.RUN_INFO, _CHOSEN, _HAS_EXPERIMENT)}))"
)
_GPUS = f"max by ({NODE_RUN_KEY}, gpu, uuid) ({peak(m.RUN_GPU_INFO)})"
_ONLY_GPU = f"({_GPUS} and on ({RUN_KEY}) (count by ({RUN_KEY}) ({_GPUS}) == 1))"
_ON_GPU = f"group_left (instance, gpu, uuid) {_ONLY_GPU}"
_WORK = f"(max by ({NODE_RUN_KEY}, unit) ({peak(m.RUN_PHASE_WORK, _MEASURE)}) > 0)"
_SECONDS = f"(max by ({NODE_RUN_KEY}) ({peak(m.RUN_PHASE_SECONDS, _MEASURE)}) > 0)"
_TIME_PER_UNIT = (
    f"({_SECONDS} / on ({NODE_RUN_KEY}) group_right () {_WORK} "
    f"* on ({NODE_RUN_KEY}) group_left (gpu, uuid) {_ONLY_GPU})"
)
_ENERGY_PER_UNIT = f"({WORK.energy_per_unit()} * on ({RUN_KEY}) {_ON_GPU})"


def _by_gpu(expression: str) -> str:
    return (
        f"avg by ({NODE_KEY}, gpu, uuid, {_LIKE}, unit) "
        f"({expression} * on ({NODE_RUN_KEY}) group_left ({_LIKE}) {succeeded(_INFO)})"
    )


_PER_UNIT = Panel(
    "Time and energy per unit of work, by GPU",
    "Duration of the phase measure divided by its work, and energy per unit as in the dashboard "
    "Runs: the mean over "
    "the experiment's successful runs that used only this GPU. Compare rows with the same "
    "workload, model, batch and "
    "power limit.",
    "short",
    (Query(_by_gpu(_TIME_PER_UNIT)), Query(_by_gpu(_ENERGY_PER_UNIT))),
    "table",
    width=24,
    columns={
        "workload": "workload",
        "label_model": "model",
        "label_batch_size": "batch",
        "label_power_limit_watts": "power limit, W",
        "unit": "unit",
        "instance": "node",
        "gpu": "GPU",
        "uuid": "",
        "cluster": "cluster",
        "Value #A": "time per unit",
        "Value #B": "energy per unit",
    },
    units={"time per unit": "s", "energy per unit": "joule"},
    remedy="No successful run of an experiment used exactly one GPU in the time range.",
)

VARIABILITY = Board(
    "wattline-variability",
    "Wattline: variability",
    "Differences between GPUs at the same work. `analyzer variability` reports medians, outliers "
    "and intervals.",
    (CLUSTER, NODE, EXPERIMENT),
    (("Busy GPUs", (_POWER, _CLOCK, _TEMPERATURE, _SPREAD)), ("Single-GPU runs", (_PER_UNIT,))),
    since="now-6h",
)
