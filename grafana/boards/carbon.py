"""Dashboard of carbon intensity, its forecast, and emissions."""

from __future__ import annotations

from grafana.board import CLUSTER, MODEL, NODE, Board, named, selector
from grafana.panel import Panel, Query, bars, lines
from grafana.recorded_series import OWNER_EMISSIONS, sum_over_range
from wattline.contract import metrics as m

_SLOT = "{{region}} {{provider}} {{basis}} ({{quality}})"
_AVERAGE = 'basis="average"'
_DEVICE_EMISSIONS = selector(m.EMISSIONS, _AVERAGE)
_OF_MODELS = 'label_model=~"$model"'
_IN_FORCE = f"max by (region, provider, basis, quality) ({selector(m.CARBON_INTENSITY)})"
_NONE = "No carbon intensity: no selected exporter has --carbon.region or --carbon.intensity."

_INTENSITY = (
    lines(
        "Carbon intensity",
        "Intensity of the current slot by region and basis. The quality is actual, forecast, "
        "estimated, or static "
        "(a yearly mean).",
        "suffix:g/kWh",
        _IN_FORCE,
        _SLOT,
    )
    .sized(16, 8)
    .without(data=_NONE)
)
_NOW = Panel(
    "Now",
    "Carbon intensity that is applied now.",
    "suffix:g/kWh",
    (Query(_IN_FORCE, _SLOT),),
    "number",
    width=8,
    remedy="No --carbon.region",
)
_FORECAST = Panel(
    "Forecast",
    "Forecast intensity by hours from now. Work emits least where it is lowest.",
    "suffix:g/kWh",
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
    units={"from now": "suffix:h"},
    remedy="No selected provider has a forecast.",
)
_AGE = (
    lines(
        "Age of the provider's data",
        "Time since the provider's last response. Without one, its forecast applies, then the "
        "yearly mean.",
        "s",
        f"time() - max by (provider, basis) ({selector(m.CARBON_FETCHED_TIMESTAMP)})",
        "{{provider}} {{basis}}",
    )
    .sized(8, 9)
    .with_calcs("lastNotNull", "max")
    .without(data="No provider is queried: the intensity is constant or not set.")
)
_RATE = Panel(
    "Emissions now",
    "Current g CO2eq per hour of all devices, by average intensity.",
    "suffix:g/h",
    (
        Query(
            f"3600 * sum by (component) (rate({_DEVICE_EMISSIONS}[$__rate_interval]))",
            "{{component}}",
        ),
    ),
    "areas",
    width=8,
    height=9,
    remedy=_NONE,
)
_BY_HOUR = Panel(
    "Emissions by hour",
    "g CO2eq of all devices in the hour that starts at each bar, by average intensity; the last "
    "hour is incomplete. "
    "Over a range of months a bar covers several hours.",
    "massg",
    (
        Query(
            f"sum by (component) (increase({_DEVICE_EMISSIONS}[$__interval] offset -$__interval))",
            "{{component}}",
        ),
    ),
    "spans",
    width=24,
    calcs=("sum", "max"),
    step="1h",
    remedy=_NONE,
)
_BY_NODE = bars(
    "Emissions by node",
    "g CO2eq over the time range, by average intensity.",
    "massg",
    f"sum by (cluster, instance) (increase({_DEVICE_EMISSIONS}[$__range]))",
    {"instance": "node", "cluster": "cluster", "Value": "emissions"},
).without(data=_NONE)
_BY_MODEL = bars(
    "Emissions by model",
    "g CO2eq of runs over the time range, by average intensity. Runs that share a device get their "
    "attributed share.",
    "massg",
    named(
        f"sum by (label_model) ({sum_over_range(OWNER_EMISSIONS, _AVERAGE, _OF_MODELS)})",
        "label_model",
    ),
    {"label_model": "model", "Value": "emissions"},
).without(
    data="No run with emissions in the recording rules of deploy/prometheus, which lag by six "
    "minutes."
)

CARBON = Board(
    "wattline-carbon",
    "Wattline: carbon",
    "Current and forecast intensity; emissions by hour, node and model.",
    (CLUSTER, NODE, MODEL),
    (
        ("Intensity", (_INTENSITY, _NOW, _FORECAST, _AGE, _RATE)),
        ("Emissions", (_BY_HOUR, _BY_NODE, _BY_MODEL)),
    ),
    since="now-24h",
)
