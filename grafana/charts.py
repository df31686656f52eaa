"""Matplotlib charts of query results, one function for each kind of panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter
from matplotlib.ticker import FuncFormatter, MaxNLocator

from grafana.amount import amount

COLORS = (
    "#4477aa",
    "#cc6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#999933",
    "#bbbbbb",
    "#882255",
    "#44aa99",
)
TEXT = "#333333"
FAINT = "#dddddd"
_SMALL = 7.0
_LEGEND_ROWS = 3
_NARROW = 22
_CELL = 34
_LETTERS = 6
"""Width of a text in characters for each of the 24 columns of a board."""
_DAY_S = 86_400


@dataclass(frozen=True)
class ResultSeries:
    """One series of a query result; `ref` is the query's letter. An instant query has one timestamp
    in `t`.
    """

    ref: str
    legend: str
    labels: Mapping[str, str]
    t: Sequence[float]
    value: Sequence[float]
    step_s: float = 0.0


@dataclass(frozen=True)
class Times:
    """Range of a time axis; `marks` are timestamps and their colors."""

    begin_s: float
    end_s: float
    marks: Sequence[tuple[float, str]] = ()


def draw(
    axes: Axes, panel: Mapping[str, Any], results: Sequence[ResultSeries], times: Times
) -> None:
    if not results:
        axes.axis("off")
        text = panel["fieldConfig"]["defaults"].get("noValue", "no data")
        text = fill(text, _LETTERS * int(panel["gridPos"]["w"]))
        note = axes.text(0.5, 0.5, text, ha="center", va="center", color="#999999", fontsize=9)
        note.set_transform(axes.transAxes)
        return
    _KINDS[panel["type"]](axes, panel, results)
    if panel["type"] == "timeseries":
        axes.set_xlim(times.begin_s / _DAY_S, times.end_s / _DAY_S)
        for t, color in times.marks:
            axes.axvline(t / _DAY_S, color=color, linewidth=0.7, linestyle=":", alpha=0.8)


def _unit(panel: Mapping[str, Any]) -> str:
    return str(panel["fieldConfig"]["defaults"].get("unit", "none"))


def _quiet(axes: Axes) -> None:
    axes.tick_params(labelsize=_SMALL, length=0, colors=TEXT)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def _y_axis(axes: Axes, unit: str) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value, unit)))
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.0), 1.05 * high if high > 0 else 1.0)


def _legend(axes: Axes, entries: int) -> None:
    handles, names = axes.get_legend_handles_labels()
    columns = 3 if max(map(len, names)) <= _NARROW else 2
    room = _LEGEND_ROWS * columns
    if entries > room:
        handles = [*handles[: room - 1], axes.plot([], [], alpha=0)[0]]
        names = [*names[: room - 1], f"… and {entries - room + 1} more"]
    axes.legend(
        handles,
        names,
        loc="upper left",
        bbox_to_anchor=(0, -0.12),
        ncols=columns,
        fontsize=_SMALL,
        frameon=False,
        labelcolor=TEXT,
    )


def _lines(axes: Axes, panel: Mapping[str, Any], results: Sequence[ResultSeries]) -> None:
    _quiet(axes)
    custom = panel["fieldConfig"]["defaults"]["custom"]
    stacked = custom.get("stacking", {}).get("mode") == "normal"
    spans = custom.get("drawStyle") == "bars"
    base: dict[float, float] = {}
    for number, one in enumerate(results):
        color = COLORS[number % len(COLORS)]
        moments = [t / _DAY_S for t in one.t]
        if stacked:
            low = [base.get(t, 0.0) for t in one.t]
            high = [below + value for below, value in zip(low, one.value, strict=True)]
            if spans:
                width = one.step_s / _DAY_S * custom["barAlignment"]
                axes.bar(
                    moments,
                    one.value,
                    width,
                    low,
                    align="edge",
                    color=color,
                    alpha=0.6,
                    label=one.legend,
                )
            else:
                axes.fill_between(
                    moments, low, high, color=color, alpha=0.5, linewidth=0, label=one.legend
                )
            base.update(zip(one.t, high, strict=True))
        else:
            dashes = "--" if one.legend.startswith(("limit", "whole")) else "-"
            axes.plot(moments, one.value, dashes, color=color, linewidth=1.1, label=one.legend)
    axes.xaxis_date()
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]  # matplotlib has none
    _y_axis(axes, _unit(panel))
    _legend(axes, len(results))


def _numbers(axes: Axes, panel: Mapping[str, Any], results: Sequence[ResultSeries]) -> None:
    axes.axis("off")
    for number, one in enumerate(results):
        x = (number + 0.5) / len(results)
        text = amount(one.value[-1], _unit(panel))
        axes.text(
            x,
            0.55,
            text,
            ha="center",
            va="center",
            fontsize=15,
            color=_threshold_color(panel, one.value[-1]),
        )
        axes.text(x, 0.16, one.legend, ha="center", va="center", fontsize=_SMALL, color=TEXT)


def _threshold_color(panel: Mapping[str, Any], value: float) -> str:
    """Return the color of the last threshold that the value reaches."""
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    reached = [step["color"] for step in steps if step["value"] is None or value >= step["value"]]
    return {"green": COLORS[2], "orange": "#dd7700"}[reached[-1]]


def _gauges(axes: Axes, panel: Mapping[str, Any], results: Sequence[ResultSeries]) -> None:
    _quiet(axes)
    axes.grid(visible=False)
    values = [one.value[-1] for one in results]
    unit = _unit(panel)
    axes.barh(range(len(results)), values, color=COLORS[0], height=0.6)
    axes.set_yticks(range(len(results)), [one.legend for one in results])
    axes.set_xticks([])
    axes.set_xlim(0, 1.2 * max(*values, 1e-9))
    axes.invert_yaxis()
    for position, value in enumerate(values):
        axes.text(
            value, position, f" {amount(value, unit)}", va="center", fontsize=_SMALL + 1, color=TEXT
        )


def rows(
    panel: Mapping[str, Any], results: Sequence[ResultSeries]
) -> tuple[list[str], list[dict[str, Any]]]:
    """Return ordered columns and rows by column, as Grafana's transformations of the panel produce
    them.
    """
    steps = next(step["options"] for step in panel["transformations"] if step["id"] == "organize")
    names = steps["renameByName"]
    several = len(panel["targets"]) > 1
    table_rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for one in results:
        value = f"Value #{one.ref}" if several else "Value"
        row = table_rows.setdefault(tuple(sorted(one.labels.items())), {})
        for name, shown in {**one.labels, value: one.value[-1]}.items():
            if name in names:
                row[names[name]] = shown
    ordered = sorted(names, key=lambda name: int(steps["indexByName"][name]))
    present = {column for row in table_rows.values() for column in row}
    return [names[name] for name in ordered if names[name] in present], list(table_rows.values())


def column_units(panel: Mapping[str, Any]) -> dict[str, str]:
    overrides = panel["fieldConfig"].get("overrides", [])
    return {one["matcher"]["options"]: one["properties"][0]["value"] for one in overrides}


def _table(axes: Axes, panel: Mapping[str, Any], results: Sequence[ResultSeries]) -> None:
    axes.axis("off")
    columns, table_rows = rows(panel, results)
    for one in panel["options"].get("sortBy", ()):
        table_rows.sort(key=lambda row: row.get(one["displayName"], 0.0), reverse=one["desc"])
    units = column_units(panel)
    lines = max(2, int(panel["gridPos"]["h"]) - 1)
    cells = [
        [
            ("" if (value := row.get(name)) is None else value[:_CELL])
            if not isinstance(row.get(name), float)
            else amount(row[name], units.get(name, _unit(panel)))
            for name in columns
        ]
        for row in table_rows
    ]
    if len(cells) > lines:
        cells = [
            *cells[: lines - 1],
            [f"… and {len(cells) - lines + 1} more", *[""] * (len(columns) - 1)],
        ]
    widths = [
        max(len(text) for text in (name, *(row[position] for row in cells))) + 2
        for position, name in enumerate(columns)
    ]
    for line, row in enumerate([columns, *cells]):
        y = 1 - (line + 0.5) / (lines + 1)
        x = 0.0
        for text, width in zip(row, widths, strict=True):
            weight = "bold" if line == 0 else "normal"
            axes.text(x, y, text, fontsize=_SMALL, va="center", color=TEXT, weight=weight)
            x += width / sum(widths)
        axes.plot([0, 1], [y - 0.5 / (lines + 1)] * 2, color=FAINT, linewidth=0.6)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)


def _bars(axes: Axes, panel: Mapping[str, Any], results: Sequence[ResultSeries]) -> None:
    _quiet(axes)
    axes.grid(visible=False, axis="x")
    columns, table_rows = rows(panel, results)
    x = columns[0]
    y = columns[-1]
    table_rows.sort(key=lambda row: -row[y])
    axes.bar(range(len(table_rows)), [row[y] for row in table_rows], color=COLORS[0], width=0.5)
    axes.set_xticks(range(len(table_rows)), [row.get(x, "") for row in table_rows])
    _y_axis(axes, _unit(panel))
    axes.set_xlim(-0.6, max(len(table_rows), 4) - 0.4)
    for position, row in enumerate(table_rows):
        axes.text(
            position,
            row[y],
            amount(row[y], _unit(panel)),
            ha="center",
            va="bottom",
            fontsize=_SMALL,
            color=TEXT,
        )


def _points(axes: Axes, panel: Mapping[str, Any], results: Sequence[ResultSeries]) -> None:
    _quiet(axes)
    columns, table_rows = rows(panel, results)
    x, *keys, y = columns
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in table_rows:
        lines.setdefault(" ".join(str(row.get(name, "")) for name in keys), []).append(
            (float(row[x]), row[y])
        )
    for number, (name, points) in enumerate(lines.items()):
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(
            xs,
            ys,
            "o-",
            color=COLORS[number % len(COLORS)],
            markersize=4,
            linewidth=1.1,
            label=name,
        )
    unit = column_units(panel).get(x, "none")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: amount(value, unit)))
    _y_axis(axes, _unit(panel))
    _legend(axes, len(lines))


_KINDS = {
    "timeseries": _lines,
    "stat": _numbers,
    "bargauge": _gauges,
    "table": _table,
    "barchart": _bars,
    "xychart": _points,
}
