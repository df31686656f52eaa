"""Plot of the energy of requests against their generated tokens, one point each."""

from __future__ import annotations

import io
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from wattline.figures import short_text
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.report.plot import LIGHT, Theme, plot_style
from wattline_analyzer.requests.report import RequestEnergyReport

MOST_POINTS = 20_000
_MOST_MODELS = 8
LINEAR_RATIO = 8.0
"""Largest ratio of the largest and the smallest value of a linear axis."""
MANY_DECADES = 1_000.0
"""Ratio of the largest and the smallest value from which on only the powers of ten have labels."""


def requests_plot(report: RequestEnergyReport, theme: Theme = LIGHT) -> bytes:
    """Return a PNG of all requests, or of MOST_POINTS evenly chosen ones; each model has its
    colour.
    """
    target = io.BytesIO()
    with mpl.rc_context(plot_style(theme)):
        requests_figure(report, theme).savefig(
            target, format="png", dpi=160, metadata={"Software": "Wattline"}
        )
    return target.getvalue()


def requests_figure(report: RequestEnergyReport, theme: Theme = LIGHT) -> Figure:
    """Return the plot with the current style; the legend of several models is beside the axes."""
    count = len(report.table.spans)
    shown = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).astype(int))
    joules = np.maximum(report.joules[shown], 1e-3)
    tokens = np.maximum(report.table.spans.generated_tokens[shown], 1.0)
    models = report.table.label_values("model", shown).astype(str)
    names, counts = np.unique(models, return_counts=True)
    names = names[np.argsort(-counts, kind="stable")]
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    axes = figure.subplots()
    for position, name in enumerate(names[:_MOST_MODELS]):
        rest = position == _MOST_MODELS - 1 and len(names) > _MOST_MODELS
        chosen = np.isin(models, names[position:]) if rest else models == name
        axes.scatter(
            tokens[chosen],
            joules[chosen],
            s=14 if len(shown) < 3_000 else 5,
            alpha=0.5,
            linewidths=0,
            color=theme.series[position],
            label="other models" if rest else str(name) or "(no model)",
        )
    scale_axis(axes, "x", tokens, "Generated tokens")
    scale_axis(axes, "y", joules, "Energy of a request, J")
    axes.grid(color=theme.line, linewidth=0.6)
    axes.set_axisbelow(True)
    if len(names) > 1:
        figure.legend(frameon=False, loc="outside right upper", markerscale=1.6)
    return figure


def scale_axis(axes: Axes, name: Literal["x", "y"], values: FloatArray, title: str) -> None:
    """Set the scale of an axis, which its title names: logarithmic for values of different
    magnitudes.
    """
    ratio = float(values.max() / values.min())
    is_log = ratio > LINEAR_RATIO
    axis = axes.xaxis if name == "x" else axes.yaxis
    axes.set(
        **{
            f"{name}scale": "log" if is_log else "linear",
            f"{name}label": title + ", log scale" * is_log,
        }
    )
    if is_log:
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if ratio < MANY_DECADES else (1.0,)))
        axis.set_minor_formatter("")
    axis.set_major_formatter(FuncFormatter(lambda value, _: short_text(value)))
