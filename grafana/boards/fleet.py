"""Who uses the fleet's energy, and what of it no run used. By the recording rules of deploy/prometheus."""

from __future__ import annotations

from grafana.board import CLUSTER, NODE, Board, Entered, named, selector
from grafana.panel import Panel, Query, bars

_DEVICES = "instance:wattline_device_energy_joules:increase5m"
_UNCLAIMED = "instance:wattline_unclaimed_energy_joules:increase5m"
_OWNERS = "owner:wattline_run_attributed_energy_joules:increase5m"
_GRAMS = "instance:wattline_emissions_grams:increase5m"
_WORK = "owner:wattline_run_work:increase5m"
_OWNER = "cluster, instance, workload, label_model, label_user, label_namespace"
_GPU = 'component="gpu"'
_AVERAGE = 'basis="average"'
_TOKENS = 'unit="generated_tokens"'
_KWH = "3600000"
_STEP = "5m"
"""Each sample of a rule is of five minutes: sums over a whole number of them count each once."""
_NO_RULES = "Load wattline.rules.yml"
_NONE = "Nothing is recorded: load deploy/prometheus/wattline.rules.yml into the server."
PRICE = Entered("price", "Price of 1 kWh", "0.25")


def _over_range(rule: str, *matchers: str) -> str:
    return f"sum_over_time({selector(rule, *matchers)}[$__range])"


def _mean_power(rule: str, *by: str) -> str:
    """0 where one that was on in the range was not: the legend's mean is of all of the range."""
    grouped = f"sum by ({', '.join(by)})" if by else "sum"
    drawn = f"{grouped} (sum_over_time({selector(rule)}[$__interval]))"
    ever = f"{grouped} (sum_over_time({selector(rule)}[$__range] @ end()))"
    return f"1000 * {drawn} / $__interval_ms or 0 * {ever}"


def _figure(title: str, description: str, unit: str, expr: str, legend: str) -> Panel:
    return Panel(title, description, unit, (Query(expr, legend),), "number", 6, 5, remedy=_NO_RULES)


def _most(title: str, whose: str, label: str, name: str) -> Panel:
    largest = f"topk(10, {named(f'sum by ({label}) ({_over_range(_OWNERS)})', label)})"
    return bars(title, f"{whose}; the ten largest.", "joule", largest, {label: name, "Value": "energy"}).without(
        data=_NONE
    )


def _by_node(title: str, description: str, rule: str, *matchers: str) -> Panel:
    largest = f"topk(10, sum by (cluster, instance) ({_over_range(rule, *matchers)}))"
    columns = {"instance": "node", "cluster": "cluster", "Value": "energy"}
    return bars(title, description, "joule", largest, columns).without(data=_NONE)


_ENERGY = _figure(
    "Energy",
    "Of all devices over the time range.",
    "joule",
    f"sum by (component) ({_over_range(_DEVICES)})",
    "{{component}}",
)
_IDLE = _figure(
    "GPU energy of no run",
    "The share of the GPUs' energy that was drawn while no run held them.",
    "percentunit",
    f"sum({_over_range(_UNCLAIMED, _GPU)}) / sum({_over_range(_DEVICES, _GPU)})",
    "of no run",
)
_EMISSIONS = _figure(
    "Emissions",
    "gCO2eq of all devices over the time range, by average intensity.",
    "massg",
    f"sum({_over_range(_GRAMS, _AVERAGE)})",
    "average",
).without(data="No --carbon.region, or no rules")
_IDLE_COST = _figure(
    "Cost of GPU energy of no run",
    "Kilowatt hours that the GPUs drew while no run held them, times the price that is set above.",
    "short",
    f"sum({_over_range(_UNCLAIMED, _GPU)}) / {_KWH} * $price",
    "of no run",
)
_BY_NODE = _by_node("Energy by node", "Joules of all devices; the ten largest.", _DEVICES)
_IDLE_BY_NODE = _by_node("GPU energy of no run, by node", "Joules; the ten largest.", _UNCLAIMED, _GPU)
_BY_USER = _most("Top users", "Joules attributed to the runs of each user", "label_user", "user")
_BY_MODEL = _most("Top models", "Joules attributed to the runs of each model", "label_model", "model")
_PER_TOKEN = Panel(
    "Energy per generated token",
    "All GPU joules of a model's runs that generated tokens, over these tokens: a ratio of sums.",
    "joule",
    (
        Query(
            named(
                f"sum by (label_model) ({_over_range(_OWNERS, _GPU)} and on ({_OWNER}) "
                f"{_over_range(_WORK, _TOKENS)} > 0) "
                f"/ sum by (label_model) ({_over_range(_WORK, _TOKENS)} > 0)",
                "label_model",
            )
        ),
    ),
    "table",
    columns={"label_model": "model", "Value": "per token"},
    units={"per token": "joule"},
    remedy="No run that generated tokens is recorded in the time range.",
)
_NAMESPACE_KWH = named(f"sum by (label_namespace) ({_over_range(_OWNERS)}) / {_KWH}", "label_namespace")
_COST = Panel(
    "Energy and cost by namespace",
    "Kilowatt hours attributed to the runs of each namespace, and the same times the price that is set above.",
    "short",
    (Query(_NAMESPACE_KWH), Query(f"{_NAMESPACE_KWH} * $price")),
    "table",
    columns={"label_namespace": "namespace", "Value #A": "energy", "Value #B": "cost"},
    units={"energy": "kwatth"},
    remedy=_NONE,
)
_POWER = Panel(
    "Mean power, of runs and of none",
    "Watts of all components, each bar the mean of five minutes, or of more over a long range.",
    "watt",
    (Query(_mean_power(_OWNERS, "workload"), "{{workload}}"), Query(_mean_power(_UNCLAIMED), "no run")),
    "means",
    width=24,
    step=_STEP,
    remedy=_NONE,
)

FLEET = Board(
    "wattline-fleet",
    "Wattline: fleet",
    "Top users and models, idle waste and cost. Rules record it: what is younger than six minutes is not in it yet, "
    "nor is less than five minutes. For exact figures of any window: `analyzer fleet`.",
    (CLUSTER, NODE, PRICE),
    (
        ("All of it", (_ENERGY, _IDLE, _IDLE_COST, _EMISSIONS, _POWER)),
        ("By owner", (_BY_USER, _BY_MODEL, _PER_TOKEN, _COST)),
        ("By node", (_BY_NODE, _IDLE_BY_NODE)),
    ),
    since="now-24h",
)
