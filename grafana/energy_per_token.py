"""Energy per generated token of each model: panel of the dashboard of the fleet."""

from __future__ import annotations

from grafana.board import named
from grafana.panel import Panel, Query
from grafana.recorded_series import CPU, GPU, OWNER_ENERGY, OWNER_WORK, sum_over_range

_OWNER = "cluster, workload, label_model, label_user, label_namespace"
"""Labels of an owner, over all its nodes."""
_TOKENS = sum_over_range(OWNER_WORK, 'unit="generated_tokens"')

ENERGY_PER_TOKEN = Panel(
    "Energy per generated token",
    "Energy attributed to a model's runs that generated tokens, divided by these tokens (a ratio "
    "of sums): of GPUs, or "
    "of CPUs where the runs had no GPU. It covers whole runs; the dashboard Runs and `analyzer "
    "fleet` show that of the "
    "phases of the work.",
    "joule",
    (
        Query(
            named(
                f"sum by (label_model) (({sum_over_range(OWNER_ENERGY, GPU)} or on ({_OWNER}) "
                f"{sum_over_range(OWNER_ENERGY, CPU)}) "
                f"and on ({_OWNER}) {_TOKENS} > 0) "
                f"/ sum by (label_model) ({_TOKENS} > 0)",
                "label_model",
            )
        ),
    ),
    "table",
    columns={"label_model": "model", "Value": "per token, whole run"},
    units={"per token, whole run": "joule"},
    remedy="No run that generated tokens is recorded in the time range.",
)
