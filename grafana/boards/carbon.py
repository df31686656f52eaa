"""Carbon intensity now and to come, and grams by hour, model and node."""

from __future__ import annotations

from exporter.contract import metrics as m
from grafana.board import CLUSTER, MODEL, NODE, Board, named, selector
from grafana.panel import Panel, Query

_SLOT = "{{region}} {{basis}} ({{quality}})"
_AVERAGE = 'basis="average"'
_OF_OWNERS = selector("owner:wattline_run_emissions_grams:increase5m", _AVERAGE, 'label_model=~"$model"')

_INTENSITY = Panel(
    "Carbon intensity",
    "Of the slot in force, by region and basis; the quality says whether it was measured, forecast, estimated or is a "
    "yearly mean (static).",
    "suffix: g/kWh",
    (
        Query(
            f"max by (region, provider, basis, quality) ({selector(m.CARBON_INTENSITY)})",
            _SLOT,
        ),
    ),
    width=16,
)
_NOW = Panel(
    "Now",
    "The intensity that counts at this moment.",
    "suffix: g/kWh",
    (Query(f"max by (region, basis, quality) ({selector(m.CARBON_INTENSITY)})", _SLOT),),
    "number",
    width=8,
)
_FORECAST = Panel(
    "Forecast",
    "Intensity in so many hours from now, as the provider forecasts it: where it is least, work costs least.",
    "suffix: g/kWh",
    (Query(f"max by (region, basis, horizon_hours) ({selector(m.CARBON_FORECAST)})"),),
    "points",
    width=8,
    height=9,
    columns={"horizon_hours": "from now", "region": "region", "basis": "basis", "Value": "intensity"},
    units={"from now": "suffix: h"},
)
_AGE = Panel(
    "Age of the provider's answer",
    "Time since the provider last answered. While it does not, its forecast counts, then the yearly mean.",
    "s",
    (Query(f"time() - max by (provider, basis) ({selector(m.CARBON_FETCHED_TIMESTAMP)})", "{{provider}} {{basis}}"),),
    width=8,
    height=9,
)
_RATE = Panel(
    "Emissions an hour",
    "gCO2eq an hour of all devices, by average intensity.",
    "suffix: g/h",
    (Query(f"3600 * sum by (component) (rate({selector(m.EMISSIONS, _AVERAGE)}[$__rate_interval]))", "{{component}}"),),
    "areas",
    width=8,
    height=9,
)
_BY_NODE = Panel(
    "Emissions by node",
    "gCO2eq over the time range, by average intensity.",
    "massg",
    (Query(f"sum by (cluster, instance) (increase({selector(m.EMISSIONS, _AVERAGE)}[$__range]))"),),
    "bars",
    columns={"instance": "node", "cluster": "cluster", "Value": "emissions"},
)
_BY_MODEL = Panel(
    "Emissions by model",
    "gCO2eq of runs over the time range, by average intensity: of devices that runs shared, each has its part.",
    "massg",
    (Query(named(f"sum by (label_model) (sum_over_time({_OF_OWNERS}[$__range]))", "label_model")),),
    "bars",
    columns={"label_model": "model", "Value": "emissions"},
)

CARBON = Board(
    "wattline-carbon",
    "Wattline: carbon",
    "Intensity now and forecast, grams by hour, by node and by model.",
    (CLUSTER, NODE, MODEL),
    (
        ("Intensity", (_INTENSITY, _NOW, _FORECAST, _AGE, _RATE)),
        ("Emissions", (_BY_NODE, _BY_MODEL)),
    ),
    since="now-24h",
)
