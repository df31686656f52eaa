"""Carbon intensity now and to come, and grams by hour, model and node."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, MODEL, NODE, Board, named, selector
from grafana.panel import Panel, Query, bars, lines

_SLOT = "{{region}} {{provider}} {{basis}} ({{quality}})"
_AVERAGE = 'basis="average"'
_EMITTED = selector(m.EMISSIONS, _AVERAGE)
_OF_OWNERS = selector("owner:wattline_run_emissions_grams:increase5m", _AVERAGE, 'label_model=~"$model"')
_IN_FORCE = f"max by (region, provider, basis, quality) ({selector(m.CARBON_INTENSITY)})"
_NONE = "No carbon: no exporter of the choice has --carbon.region or --carbon.intensity."

_INTENSITY = (
    lines(
        "Carbon intensity",
        "Of the slot in force, by region and basis; the quality says whether it was measured, forecast, estimated or "
        "is a yearly mean (static).",
        "suffix: g/kWh",
        _IN_FORCE,
        _SLOT,
    )
    .sized(16, 8)
    .without(data=_NONE)
)
_NOW = Panel(
    "Now",
    "The intensity that counts at this moment.",
    "suffix: g/kWh",
    (Query(_IN_FORCE, _SLOT),),
    "number",
    width=8,
    remedy="No --carbon.region",
)
_FORECAST = Panel(
    "Forecast",
    "Intensity in so many hours from now, as the provider forecasts it: where it is least, work costs least.",
    "suffix: g/kWh",
    (Query(f"max by (region, provider, basis, horizon_hours) ({selector(m.CARBON_FORECAST)})"),),
    "points",
    width=8,
    height=9,
    columns={
        "horizon_hours": "from now",
        "region": "region",
        "provider": "provider",
        "basis": "basis",
        "Value": "intensity",
    },
    units={"from now": "suffix: h"},
    remedy="No provider of the choice forecasts.",
)
_AGE = (
    lines(
        "Age of the provider's answer",
        "Time since the provider last answered. While it does not, its forecast counts, then the yearly mean.",
        "s",
        f"time() - max by (provider, basis) ({selector(m.CARBON_FETCHED_TIMESTAMP)})",
        "{{provider}} {{basis}}",
    )
    .sized(8, 9)
    .telling("lastNotNull", "max")
    .without(data="No provider is asked: the intensity is a constant, or there is none.")
)
_RATE = Panel(
    "Emissions now",
    "gCO2eq an hour at the rate of the moment, of all devices, by average intensity.",
    "suffix: g/h",
    (Query(f"3600 * sum by (component) (rate({_EMITTED}[$__rate_interval]))", "{{component}}"),),
    "areas",
    width=8,
    height=9,
    remedy=_NONE,
)
_BY_HOUR = Panel(
    "Emissions by hour",
    "gCO2eq of all devices in the hour that begins at each bar, by average intensity; the last is the hour that is on. "
    "Over a range of months a bar is of several hours.",
    "massg",
    (Query(f"sum by (component) (increase({_EMITTED}[$__interval] offset -$__interval))", "{{component}}"),),
    "spans",
    width=24,
    calcs=("sum", "max"),
    step="1h",
    remedy=_NONE,
)
_BY_NODE = bars(
    "Emissions by node",
    "gCO2eq over the time range, by average intensity.",
    "massg",
    f"sum by (cluster, instance) (increase({_EMITTED}[$__range]))",
    {"instance": "node", "cluster": "cluster", "Value": "emissions"},
).without(data=_NONE)
_BY_MODEL = bars(
    "Emissions by model",
    "gCO2eq of runs over the time range, by average intensity: of devices that runs shared, each has its part.",
    "massg",
    named(f"sum by (label_model) (sum_over_time({_OF_OWNERS}[$__range]))", "label_model"),
    {"label_model": "model", "Value": "emissions"},
).without(data="No run with grams in the recording rules of deploy/prometheus, which are six minutes behind.")

CARBON = Board(
    "wattline-carbon",
    "Wattline: carbon",
    "Intensity now and forecast, grams by hour, by node and by model.",
    (CLUSTER, NODE, MODEL),
    (
        ("Intensity", (_INTENSITY, _NOW, _FORECAST, _AGE, _RATE)),
        ("Emissions", (_BY_HOUR, _BY_NODE, _BY_MODEL)),
    ),
    since="now-24h",
)
