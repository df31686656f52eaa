"""Appearance of each kind of panel, built with Grafana's SDK."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import (
    barchart,
    bargauge,
    common,
    dashboard,
    stat,
    table,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import xychart as xychart_model

from grafana.panel import Panel

UNNAMED = {"Time": "", "__name__": "", "job": ""}
"""Fields that every result may have and that no column shows."""


def styled_panel(panel: Panel) -> Any:
    return _KINDS[panel.kind](panel)


def _lines(panel: Panel) -> Any:
    legend = (
        common.VizLegendOptions()
        .display_mode(common_model.LegendDisplayMode.TABLE)
        .placement(common_model.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(list(panel.calcs))
    )
    built = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(0)
        .span_nulls(False)
        .legend(legend)
        .axis_soft_min(0)
    )
    if panel.kind == "areas":
        stacked = common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A")
        built = built.fill_opacity(40).stacking(stacked)
    return built.tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI))


def _spans(panel: Panel) -> Any:
    """Return stacked bars that start at their timestamp, or end at it for means."""
    stacked = common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A")
    side = (
        common_model.BarAlignment.AFTER
        if panel.kind == "spans"
        else common_model.BarAlignment.BEFORE
    )
    bars = (
        _lines(panel)
        .draw_style(common_model.GraphDrawStyle.BARS)
        .bar_alignment(side)
        .bar_width_factor(0.9)
    )
    return bars.fill_opacity(60).stacking(stacked)


def _last() -> Any:
    return common.ReduceDataOptions().calcs(["lastNotNull"]).values(False)


def _thresholds(panel: Panel) -> Any:
    """Return the panel's thresholds only; Grafana's default thresholds turn red at 80 in any
    unit.
    """
    steps = [model.Threshold(value=None, color="green")]
    if panel.orange_from is not None:
        steps.append(model.Threshold(value=panel.orange_from, color="orange"))
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def _number(panel: Panel) -> Any:
    return (
        stat.Panel()
        .thresholds(_thresholds(panel))
        .reduce_options(_last())
        .graph_mode(common_model.BigValueGraphMode.NONE)
        .text_mode(common_model.BigValueTextMode.AUTO)
    )


def _gauges(panel: Panel) -> Any:
    return (
        bargauge.Panel()
        .thresholds(_thresholds(panel))
        .reduce_options(_last())
        .orientation(common_model.VizOrientation.HORIZONTAL)
        .display_mode(common_model.BarGaugeDisplayMode.BASIC)
        .min(0)
    )


def _table(panel: Panel) -> Any:
    """Return a table that joins the queries' rows by their labels."""
    built = table.Panel().show_header(True).with_transformation(_step("merge"))
    if panel.sort:
        built = built.sort_by([common.TableSortByFieldState().display_name(panel.sort).desc(True)])
    return _with_units(built.with_transformation(_columns(panel)), panel)


def _bars(panel: Panel) -> Any:
    x = next(iter(panel.columns.values()))
    legend = common.VizLegendOptions().show_legend(False)
    built = (
        barchart.Panel()
        .show_value(common_model.VisibilityMode.AUTO)
        .x_field(x)
        .legend(legend)
        .min(0)
    )
    return built.with_transformation(_columns(panel))


def _points(panel: Panel) -> Any:
    x, *others = panel.columns
    keys = [name for name in others if not name.startswith("Value")]
    built = (
        xychart.Panel()
        .show(xychart_model.XYShowMode.POINTS_AND_LINES)
        .mapping(xychart_model.SeriesMapping.AUTO)
        .legend(
            common.VizLegendOptions()
            .show_legend(True)
            .placement(common_model.LegendPlacement.BOTTOM)
        )
        .axis_soft_min(0)
        .with_transformation(
            _step(
                "convertFieldType",
                fields={},
                conversions=[{"targetField": x, "destinationType": "number"}],
            )
        )
        .with_transformation(_step("sortBy", fields={}, sort=[{"field": x}]))
        .with_transformation(_columns(panel))
    )
    partition = {
        "fields": [panel.columns[name] for name in keys],
        "keepFields": False,
        "naming": {"asLabels": True},
    }
    return _with_units(built.with_transformation(_step("partitionByValues", **partition)), panel)


def _step(name: str, **options: object) -> model.DataTransformerConfig:
    return model.DataTransformerConfig(id_val=name, options=options)


def _columns(panel: Panel) -> model.DataTransformerConfig:
    """Return the step that renames and orders columns and hides those without a title."""
    names = UNNAMED | panel.columns
    renamed = {name: shown for name, shown in names.items() if shown}
    return _step(
        "organize",
        excludeByName={name: True for name, shown in names.items() if not shown},
        renameByName=renamed,
        indexByName={name: position for position, name in enumerate(renamed)},
    )


def _with_units(built: Any, panel: Panel) -> Any:
    """Set the columns' units; an empty cell shows a dash, because the remedy is for an empty
    table.
    """
    for column, unit in panel.units.items():
        settings = {"unit": unit} | ({"noValue": "–"} if panel.remedy else {})
        properties = [
            model.DynamicConfigValue(id_val=name, value=value) for name, value in settings.items()
        ]
        built = built.override_by_name(column, properties)
    for column, address in panel.links.items():
        link = {"title": "details", "url": address}
        built = built.override_by_name(
            column, [model.DynamicConfigValue(id_val="links", value=[link])]
        )
    return built


_KINDS = {
    "lines": _lines,
    "areas": _lines,
    "spans": _spans,
    "means": _spans,
    "number": _number,
    "gauges": _gauges,
    "table": _table,
    "bars": _bars,
    "points": _points,
}
