"""Plot of the energy of requests against their generated tokens, one point each."""

from __future__ import annotations

import io
import math

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from analyzer.output.plots.run import LIGHT, Theme, plot_style
from analyzer.output.studies.requests import RequestReport

MOST_POINTS = 20_000
_MOST_MODELS = 8
MANY_DECADES = 1_000.0
"""Ratio of the largest and the smallest value from which on only the powers of ten have labels."""


def requests_plot(report: RequestReport, theme: Theme = LIGHT) -> bytes:
    """Return a PNG of all requests, or of MOST_POINTS evenly chosen ones; each model has its colour."""
    count = len(report.table.spans)
    shown = np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).astype(int))
    joules = np.maximum(report.joules[shown], 1e-3)
    tokens = np.maximum(report.table.spans.generated_tokens[shown], 1.0)
    models = report.table.label_values("model", shown).astype(str)
    names, counts = np.unique(models, return_counts=True)
    names = names[np.argsort(-counts, kind="stable")]
    with mpl.rc_context(plot_style(theme)):
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
        axes.set(xscale="log", yscale="log", xlabel="Generated tokens", ylabel="Energy of a request, J")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
            lowest, highest = axis.get_view_interval()
            axis.set_minor_formatter(FuncFormatter(_minor_label) if highest < MANY_DECADES * lowest else "")
        axes.grid(color=theme.line, linewidth=0.6)
        axes.set_axisbelow(True)
        if len(names) > 1:
            axes.legend(frameon=False, loc="upper left", markerscale=1.6)
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=160, metadata={"Software": "Wattline"})
    return target.getvalue()


def _minor_label(value: float, _: int) -> str:
    digit = round(value / 10 ** math.floor(math.log10(value)))
    return f"{value:,.4g}" if digit in (2, 5) else ""
