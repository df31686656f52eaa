"""Dashboard of the fleet's energy by owner, from the recording rules of deploy/prometheus."""

from __future__ import annotations

from grafana.board import CLUSTER, NODE, Board, TextVariable, named, selector
from grafana.energy_per_token import ENERGY_PER_TOKEN
from grafana.panel import Panel, Query, bars
from grafana.recorded_series import (
    DEVICE_ENERGY,
    EMISSIONS,
    GPU,
    INTERVAL,
    OWNER_ENERGY,
    UNATTRIBUTED_ENERGY,
    sum_over_range,
)

_AVERAGE = 'basis="average"'
_KWH = "3600000"
_NO_RULES = "Load wattline.rules.yml"
_NONE = "No recorded data. Load deploy/prometheus/wattline.rules.yml into the server."
PRICE = TextVariable("price", "Price of 1 kWh", "0.25")


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
    largest = f"topk(10, {named(f'sum by ({label}) ({sum_over_range(OWNER_ENERGY)})', label)})"
    return bars(
        title, f"{measure}; the ten largest.", "joule", largest, {label: name, "Value": "energy"}
    ).without(data=_NONE)


def _by_node(title: str, description: str, rule: str, *matchers: str) -> Panel:
    largest = f"topk(10, sum by (cluster, instance) ({sum_over_range(rule, *matchers)}))"
    columns = {"instance": "node", "cluster": "cluster", "Value": "energy"}
    return bars(title, description, "joule", largest, columns).without(data=_NONE)


_ENERGY = _figure(
    "Energy",
    "Energy of all devices over the time range.",
    "joule",
    f"sum by (component) ({sum_over_range(DEVICE_ENERGY)})",
    "{{component}}",
)
_IDLE = _figure(
    "Unattributed GPU energy",
    "Share of the GPUs' energy that is attributed to no run.",
    "percentunit",
    f"sum({sum_over_range(UNATTRIBUTED_ENERGY, GPU)}) / sum({sum_over_range(DEVICE_ENERGY, GPU)})",
    "unattributed",
)
_EMISSIONS = _figure(
    "Emissions",
    "g CO2eq of all devices over the time range, by average intensity.",
    "massg",
    f"sum({sum_over_range(EMISSIONS, _AVERAGE)})",
    "average",
).without(data="No --carbon.region, or no rules")
_IDLE_COST = _figure(
    "Cost of unattributed GPU energy",
    "Kilowatt hours of the GPUs attributed to no run, times the price set above.",
    "short",
    f"sum({sum_over_range(UNATTRIBUTED_ENERGY, GPU)}) / {_KWH} * $price",
    "unattributed",
)
_BY_NODE = _by_node("Energy by node", "Joules of all devices; the ten largest.", DEVICE_ENERGY)
_IDLE_BY_NODE = _by_node(
    "Unattributed GPU energy by node", "Joules; the ten largest.", UNATTRIBUTED_ENERGY, GPU
)
_BY_USER = _largest("Top users", "Joules attributed to the runs of each user", "label_user", "user")
_BY_MODEL = _largest(
    "Top models", "Joules attributed to the runs of each model", "label_model", "model"
)
_NAMESPACE_KWH = named(
    f"sum by (label_namespace) ({sum_over_range(OWNER_ENERGY)}) / {_KWH}", "label_namespace"
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
        Query(_mean_power(OWNER_ENERGY, "workload"), "{{workload}}"),
        Query(_mean_power(UNATTRIBUTED_ENERGY), "unattributed"),
    ),
    "means",
    width=24,
    step=INTERVAL,
    remedy=_NONE,
)

FLEET = Board(
    "wattline-fleet",
    "Wattline: fleet",
    "Top users and models, unattributed energy and cost. Recording rules feed it: they lag by six "
    "minutes and have a "
    "resolution of five minutes. `analyzer usage` gives exact figures for any window.",
    (CLUSTER, NODE, PRICE),
    (
        ("Total", (_ENERGY, _IDLE, _IDLE_COST, _EMISSIONS, _POWER)),
        ("By owner", (_BY_USER, _BY_MODEL, ENERGY_PER_TOKEN, _COST)),
        ("By node", (_BY_NODE, _IDLE_BY_NODE)),
    ),
    since="now-24h",
)
