"""Who uses the fleet's energy, and what of it no run used. By the recording rules of deploy/prometheus."""

from __future__ import annotations

from grafana.board import CLUSTER, NODE, Board, Entered, named, selector
from grafana.panel import Panel, Query

_DEVICES = "instance:wattline_device_energy_joules:increase5m"
_UNCLAIMED = "instance:wattline_unclaimed_energy_joules:increase5m"
_OWNERS = "owner:wattline_run_attributed_energy_joules:increase5m"
_GRAMS = "instance:wattline_emissions_grams:increase5m"
_WORK = "owner:wattline_run_work:increase5m"
_GPU = 'component="gpu"'
_AVERAGE = 'basis="average"'
_TOKENS = 'unit="generated_tokens"'
_KWH = "3600000"
_SAMPLE_S = "300"
"""Each sample of a rule is of the five minutes before it."""
PRICE = Entered("price", "Price of 1 kWh", "0.25")


def _over_range(rule: str, *matchers: str) -> str:
    return f"sum_over_time({selector(rule, *matchers)}[$__range])"


def _top(label: str) -> str:
    return f"topk(10, {named(f'sum by ({label}) ({_over_range(_OWNERS)})', label)})"


_ENERGY = Panel(
    "Energy",
    "Of all devices over the time range.",
    "joule",
    (Query(f"sum by (component) ({_over_range(_DEVICES)})", "{{component}}"),),
    "number",
    width=6,
    height=5,
)
_IDLE = Panel(
    "GPU energy of no run",
    "The share of the GPUs' energy that was drawn while no run held them.",
    "percentunit",
    (Query(f"sum({_over_range(_UNCLAIMED, _GPU)}) / sum({_over_range(_DEVICES, _GPU)})", "of no run"),),
    "number",
    width=6,
    height=5,
)
_EMISSIONS = Panel(
    "Emissions",
    "gCO2eq of all devices over the time range, by average intensity.",
    "massg",
    (Query(f"sum({_over_range(_GRAMS, _AVERAGE)})", "average"),),
    "number",
    width=6,
    height=5,
)
_IDLE_COST = Panel(
    "Cost of GPU energy of no run",
    "Kilowatt hours that the GPUs drew while no run held them, times the price that is set above.",
    "short",
    (Query(f"sum({_over_range(_UNCLAIMED, _GPU)}) / {_KWH} * $price", "of no run"),),
    "number",
    width=6,
    height=5,
)
_BY_NODE = Panel(
    "Energy by node",
    "Joules of all devices; the ten largest.",
    "joule",
    (Query(f"topk(10, sum by (cluster, instance) ({_over_range(_DEVICES)}))"),),
    "bars",
    columns={"instance": "node", "cluster": "cluster", "Value": "energy"},
)
_IDLE_BY_NODE = Panel(
    "GPU energy of no run, by node",
    "Joules; the ten largest.",
    "joule",
    (Query(f"topk(10, sum by (cluster, instance) ({_over_range(_UNCLAIMED, _GPU)}))"),),
    "bars",
    columns={"instance": "node", "cluster": "cluster", "Value": "energy"},
)
_BY_USER = Panel(
    "Top users",
    "Joules attributed to the runs of each user; the ten largest.",
    "joule",
    (Query(_top("label_user")),),
    "bars",
    columns={"label_user": "user", "Value": "energy"},
)
_BY_MODEL = Panel(
    "Top models",
    "Joules attributed to the runs of each model; the ten largest.",
    "joule",
    (Query(_top("label_model")),),
    "bars",
    columns={"label_model": "model", "Value": "energy"},
)
_PER_TOKEN = Panel(
    "Energy per generated token",
    "All GPU joules of a model's runs over the tokens that they generated: a ratio of sums.",
    "joule",
    (
        Query(
            f"sum by (label_model) ({_over_range(_OWNERS, _GPU)}) / "
            f"(sum by (label_model) ({_over_range(_WORK, _TOKENS)}) > 0)"
        ),
    ),
    "table",
    columns={"label_model": "model", "Value": "per token"},
    units={"per token": "joule"},
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
)
_POWER = Panel(
    "Mean power, of runs and of none",
    "Watts over five minutes each, of all components.",
    "watt",
    (
        Query(f"sum by (workload) ({selector(_OWNERS)}) / {_SAMPLE_S}", "{{workload}}"),
        Query(f"sum({selector(_UNCLAIMED)}) / {_SAMPLE_S}", "no run"),
    ),
    "areas",
    width=24,
)

FLEET = Board(
    "wattline-fleet",
    "Wattline: fleet",
    "Top users and models, idle waste and cost. For exact figures of any window: `analyzer fleet`.",
    (CLUSTER, NODE, PRICE),
    (
        ("All of it", (_ENERGY, _IDLE, _IDLE_COST, _EMISSIONS, _POWER)),
        ("By owner", (_BY_USER, _BY_MODEL, _PER_TOKEN, _COST)),
        ("By node", (_BY_NODE, _IDLE_BY_NODE)),
    ),
    since="now-24h",
)
