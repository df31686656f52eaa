"""Dashboard of the fleet's energy by owner, from the recording rules of deploy/prometheus."""

from __future__ import annotations

from grafana.board import CLUSTER, NODE, Board, TextVariable, named, selector
from grafana.panel import Panel, Query, bars

_DEVICES = "instance:wattline_device_energy_joules:increase5m"
_UNATTRIBUTED = "instance:wattline_unclaimed_energy_joules:increase5m"
_OWNERS = "owner:wattline_run_attributed_energy_joules:increase5m"
_GRAMS = "instance:wattline_emissions_grams:increase5m"
_WORK = "owner:wattline_run_work:increase5m"
_OWNER = "cluster, workload, label_model, label_user, label_namespace"
"""Labels of an owner, over all its nodes."""
_GPU, _CPU = 'component="gpu"', 'component="cpu"'
_AVERAGE = 'basis="average"'
_TOKENS = 'unit="generated_tokens"'
_KWH = "3600000"
_STEP = "5m"
"""Interval of the rules' samples; a sum over a whole number of intervals counts each once."""
_NO_RULES = "Load wattline.rules.yml"
_NONE = "No recorded data. Load deploy/prometheus/wattline.rules.yml into the server."
PRICE = TextVariable("price", "Price of 1 kWh", "0.25")


def _over_range(rule: str, *matchers: str) -> str:
    return f"sum_over_time({selector(rule, *matchers)}[$__range])"


def _mean_power(rule: str, *by: str) -> str:
    """Return the mean power; 0 where a series has no sample, so that the legend's mean covers the
    range.
    """
    grouped = f"sum by ({', '.join(by)})" if by else "sum"
    mean = f"{grouped} (sum_over_time({selector(rule)}[$__interval]))"
    ever = f"{grouped} (sum_over_time({selector(rule)}[$__range] @ end()))"
    return f"1000 * {mean} / $__interval_ms or 0 * {ever}"


def _figure(title: str, description: str, unit: str, expr: str, legend: str) -> Panel:
    return Panel(title, description, unit, (Query(expr, legend),), "number", 6, 5, remedy=_NO_RULES)


def _largest(title: str, measure: str, label: str, name: str) -> Panel:
    largest = f"topk(10, {named(f'sum by ({label}) ({_over_range(_OWNERS)})', label)})"
    return bars(
        title, f"{measure}; the ten largest.", "joule", largest, {label: name, "Value": "energy"}
    ).without(data=_NONE)


def _by_node(title: str, description: str, rule: str, *matchers: str) -> Panel:
    largest = f"topk(10, sum by (cluster, instance) ({_over_range(rule, *matchers)}))"
    columns = {"instance": "node", "cluster": "cluster", "Value": "energy"}
    return bars(title, description, "joule", largest, columns).without(data=_NONE)


_ENERGY = _figure(
    "Energy",
    "Energy of all devices over the time range.",
    "joule",
    f"sum by (component) ({_over_range(_DEVICES)})",
    "{{component}}",
)
_IDLE = _figure(
    "Unattributed GPU energy",
    "Share of the GPUs' energy that is attributed to no run.",
    "percentunit",
    f"sum({_over_range(_UNATTRIBUTED, _GPU)}) / sum({_over_range(_DEVICES, _GPU)})",
    "unattributed",
)
_EMISSIONS = _figure(
    "Emissions",
    "g CO2eq of all devices over the time range, by average intensity.",
    "massg",
    f"sum({_over_range(_GRAMS, _AVERAGE)})",
    "average",
).without(data="No --carbon.region, or no rules")
_IDLE_COST = _figure(
    "Cost of unattributed GPU energy",
    "Kilowatt hours of the GPUs attributed to no run, times the price set above.",
    "short",
    f"sum({_over_range(_UNATTRIBUTED, _GPU)}) / {_KWH} * $price",
    "unattributed",
)
_BY_NODE = _by_node("Energy by node", "Joules of all devices; the ten largest.", _DEVICES)
_IDLE_BY_NODE = _by_node(
    "Unattributed GPU energy by node", "Joules; the ten largest.", _UNATTRIBUTED, _GPU
)
_BY_USER = _largest("Top users", "Joules attributed to the runs of each user", "label_user", "user")
_BY_MODEL = _largest(
    "Top models", "Joules attributed to the runs of each model", "label_model", "model"
)
_PER_TOKEN = Panel(
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
                f"sum by (label_model) (({_over_range(_OWNERS, _GPU)} or on ({_OWNER}) "
                f"{_over_range(_OWNERS, _CPU)}) "
                f"and on ({_OWNER}) {_over_range(_WORK, _TOKENS)} > 0) "
                f"/ sum by (label_model) ({_over_range(_WORK, _TOKENS)} > 0)",
                "label_model",
            )
        ),
    ),
    "table",
    columns={"label_model": "model", "Value": "per token, whole run"},
    units={"per token, whole run": "joule"},
    remedy="No run that generated tokens is recorded in the time range.",
)
_NAMESPACE_KWH = named(
    f"sum by (label_namespace) ({_over_range(_OWNERS)}) / {_KWH}", "label_namespace"
)
_COST = Panel(
    "Energy and cost by namespace",
    "Kilowatt hours attributed to the runs of each namespace, and their cost at the price set "
    "above.",
    "short",
    (Query(_NAMESPACE_KWH), Query(f"{_NAMESPACE_KWH} * $price")),
    "table",
    columns={"label_namespace": "namespace", "Value #A": "energy", "Value #B": "cost"},
    units={"energy": "kwatth"},
    remedy=_NONE,
)
_POWER = Panel(
    "Mean power, attributed and unattributed",
    "Watts of all components. Each bar is a mean over five minutes, or more over a long range.",
    "watt",
    (
        Query(_mean_power(_OWNERS, "workload"), "{{workload}}"),
        Query(_mean_power(_UNATTRIBUTED), "unattributed"),
    ),
    "means",
    width=24,
    step=_STEP,
    remedy=_NONE,
)

FLEET = Board(
    "wattline-fleet",
    "Wattline: fleet",
    "Top users and models, unattributed energy and cost. Recording rules feed it: they lag by six "
    "minutes and have a "
    "resolution of five minutes. `analyzer fleet` gives exact figures for any window.",
    (CLUSTER, NODE, PRICE),
    (
        ("Total", (_ENERGY, _IDLE, _IDLE_COST, _EMISSIONS, _POWER)),
        ("By owner", (_BY_USER, _BY_MODEL, _PER_TOKEN, _COST)),
        ("By node", (_BY_NODE, _IDLE_BY_NODE)),
    ),
    since="now-24h",
)
