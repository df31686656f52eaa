"""Plot of sweeps, one column each.

Small points are runs. Large points are settings: means with 95 % CI of cost and rate, medians of
all else. Curves span the measured settings only. Settings that cost as little as the best are
shaded: no clear difference, or at most 1 %.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.ticker import EngFormatter

from wattline.figures import Figure
from wattline_analyzer.core import units
from wattline_analyzer.core.statistics import FloatArray
from wattline_analyzer.recommend.objective import Advice, Candidate
from wattline_analyzer.recommend.sweep import SweepRun
from wattline_analyzer.recommend.text import advice_headline
from wattline_analyzer.report.plot import LIGHT, Theme, plot_style

_WIDTH_IN = 5.2
_ROW_IN = 1.75
_HEAD_IN = 0.95
_NARROW = 60
_MINUTES = len("2026-11-23T07:36")
_GIB = 2**30
_CAPTION = (
    "Small points: runs · large points: settings with 95 % CI · "
    "shaded: no clear difference from the best, or at most 1 % worse"
)


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    of: Callable[[SweepRun], float | None]


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


_FACTS = (
    _Panel("Duration of a run, s", lambda run: run.duration_s),
    _Panel("Power per GPU, W (95th percentile)", lambda run: run.p95_power_w),
    _Panel("SM clock, MHz (95th percentile)", lambda run: _scaled(run.sm_clock_hz, 1e-6)),
    _Panel("Temperature, °C (maximum)", lambda run: run.temperature_celsius),
    _Panel("GPU utilization, %", lambda run: _scaled(run.utilization, 100)),
    _Panel("Memory utilization, %", lambda run: _scaled(run.memory_utilization, 100)),
    _Panel("Memory in use, GiB", lambda run: _scaled(run.memory_used_bytes, 1 / _GIB)),
)


def sweep_plot(advices: Sequence[Advice], theme: Theme = LIGHT) -> bytes:
    """Return a PNG of all sweeps; a sweep of one setting is text only. Panels without data are left
    out.
    """
    panels = [panel for panel in _FACTS if any(_known(panel, advice) for advice in advices)]
    rows = 2 + len(panels)
    columns = len(advices)
    with mpl.rc_context(plot_style(theme)):
        figure = Picture(
            figsize=(_WIDTH_IN * columns, rows * _ROW_IN + _HEAD_IN), layout="constrained"
        )
        grid = figure.subplots(rows, columns, squeeze=False, sharex="col")
        for column, advice in enumerate(advices):
            _column([grid[row, column] for row in range(rows)], advice, panels, theme)
        figure.supxlabel(
            textwrap.fill(_CAPTION, _NARROW * columns).replace(" ·\n", "\n"),
            color=theme.quiet,
            size="small",
        )
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=150, metadata={"Software": "Wattline"})
    return target.getvalue()


def _known(panel: _Panel, advice: Advice) -> bool:
    return any(panel.of(run) is not None for each in advice.candidates for run in each.runs)


def _column(axes: list[Axes], advice: Advice, panels: Sequence[_Panel], theme: Theme) -> None:
    axes[0].set_title(_heading(advice), loc="left", size="medium", pad=22)
    if not advice.candidates or advice.costs is None:
        for one in axes:
            one.set_axis_off()
        return
    families = list(dict.fromkeys(each.setting.others for each in advice.candidates))
    for number, others in enumerate(families):
        members = [
            each
            for each in advice.candidates
            if each.setting.others == others and _x(each) is not None
        ]
        color = theme.series[number % len(theme.series)]
        _measures(axes[:2], advice, members, color)
        for one, panel in zip(axes[2:], panels, strict=True):
            _facts(one, panel, members, color)
        if others and members:
            axes[0].plot(
                [], [], color=color, label=", ".join(f"{label}={text}" for label, text in others)
            )
    if families != [()]:
        axes[0].legend(frameon=False, fontsize="small")
    unit = (advice.costs.unit or "runs").replace("_", " ")
    titles = [advice.costs.measure, f"{unit}/s", *(panel.title for panel in panels)]
    for one, title in zip(axes, titles, strict=True):
        _frame(one, title, advice, theme)
    for one in axes[:2]:
        one.yaxis.set_major_formatter(EngFormatter(sep="\N{NO-BREAK SPACE}"))
    _label_settings(axes[0], advice, theme)
    clock = all(each.setting.sm_clock_hz is not None for each in advice.candidates)
    axes[-1].set_xlabel("SM clock, MHz" if clock else "Power limit, W")


def _heading(advice: Advice) -> str:
    """Return the title of the sweep, the time of its first run, and its result, wrapped."""
    started = units.moment(min(run.started_at_s for run in advice.sweep.runs))
    texts = (advice.sweep.title, started[:_MINUTES], advice_headline(advice))
    return "\n".join(line for text in texts for line in textwrap.wrap(text, _NARROW))


def _x(each: Candidate) -> float | None:
    setting = each.setting
    if setting.sm_clock_hz is not None:
        return setting.sm_clock_hz / 1e6
    return setting.power_limit_w or max(
        (run.limit_w for run in each.runs if run.limit_w), default=None
    )


def _places(members: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
    return sorted(
        ((x, each) for each in members if (x := _x(each)) is not None), key=lambda place: place[0]
    )


def _measures(axes: list[Axes], advice: Advice, members: list[Candidate], color: str) -> None:
    """Draw cost and rate with their 95 % CIs and interpolated curves."""
    assert advice.costs
    ids = [run.run_id for run in advice.sweep.runs]
    cost_of, time_of = (
        dict(zip(ids, values, strict=True)) for values in (advice.costs.cost, advice.costs.time_s)
    )
    shown = advice.costs.shown
    places = _places(members)
    for x, each in places:
        _dots(axes[0], x, [shown(cost_of[run.run_id]) for run in each.runs], color)
        _mean(axes[0], x, _mapped(each.cost, shown), color)
        _dots(axes[1], x, [1 / time_of[run.run_id] for run in each.runs], color)
        _mean(axes[1], x, each.rate, color)
    xs = [x for x, _ in places]
    if len(xs) > 1 and len(set(xs)) == len(xs):
        for one, values in (
            (axes[0], [shown(each.cost.number) for _, each in places]),
            (axes[1], [each.fitted_rate for _, each in places]),
        ):
            one.plot(*pchip_curve(xs, values), color=color, linewidth=1.2, zorder=1)


def pchip_curve(
    x: Sequence[float], y: Sequence[float], points: int = 200
) -> tuple[FloatArray, FloatArray]:
    """Interpolate without overshoot (PCHIP) from the first to the last x, which must rise
    strictly.
    """
    from scipy.interpolate import PchipInterpolator

    at = np.linspace(x[0], x[-1], points)
    return at, np.asarray(PchipInterpolator(x, y, extrapolate=False)(at), dtype=np.float64)


def _facts(axes: Axes, panel: _Panel, members: list[Candidate], color: str) -> None:
    medians = []
    for x, each in _places(members):
        known = [value for run in each.runs if (value := panel.of(run)) is not None]
        _dots(axes, x, known, color)
        if known:
            medians.append((x, float(np.median(known))))
    axes.plot(
        *zip(*medians, strict=True) if medians else ([], []),
        "o-",
        color=color,
        markersize=4,
        linewidth=0.8,
    )


def _mapped(estimate: Figure, shown: Callable[[float], float]) -> Figure:
    if estimate.low is None or estimate.high is None:
        return Figure(shown(estimate.number))
    low, high = sorted((shown(estimate.low), shown(estimate.high)))
    return Figure(shown(estimate.number), skewed=(low, high))


def _dots(axes: Axes, x: float, values: list[float], color: str) -> None:
    axes.scatter([x] * len(values), values, s=14, color=color, alpha=0.45, linewidths=0, zorder=2)


def _mean(axes: Axes, x: float, estimate: Figure, color: str) -> None:
    axes.plot([x], [estimate.number], "o", color=color, markersize=5, zorder=3)
    if estimate.low is not None and estimate.high is not None:
        halves = [[estimate.number - estimate.low], [estimate.high - estimate.number]]
        axes.errorbar(
            [x],
            [estimate.number],
            yerr=halves,
            fmt="none",
            ecolor=color,
            elinewidth=1.2,
            capsize=3,
            zorder=3,
        )


def _frame(axes: Axes, title: str, advice: Advice, theme: Theme) -> None:
    axes.grid(axis="y", color=theme.line, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=5)
    axes.margins(x=0.06, y=0.16)
    axes.text(
        0, 1.03, title, transform=axes.transAxes, color=theme.quiet, weight="bold", va="bottom"
    )
    if title.endswith("utilization, %"):
        axes.set_ylim(0, 105)
    xs = sorted({x for x, _ in _places(advice.candidates)})
    if title.startswith("Power") and xs and advice.candidates[0].setting.power_limit_w is not None:
        axes.plot(
            [xs[0], xs[-1]],
            [xs[0], xs[-1]],
            color=theme.quiet,
            linewidth=0.9,
            linestyle=":",
            zorder=0,
        )
        offset: dict[str, Any] = {
            "xytext": (-8, 3),
            "textcoords": "offset points",
            "ha": "right",
            "va": "bottom",
        }
        box = {
            "facecolor": theme.paper,
            "edgecolor": "none",
            "pad": 1,
        }  # covers the line of the recommended setting
        axes.annotate(
            "power limit",
            (xs[-1], xs[-1]),
            color=theme.quiet,
            fontsize="small",
            zorder=1,
            bbox=box,
            **offset,
        )
    for x, each in _places(advice.candidates):
        if each.like_best and len(advice.best_candidates) > 1:
            axes.axvspan(*_around(x, xs), color=theme.window, linewidth=0, zorder=-1)
    for chosen, color, dashes in _marked(advice, theme):
        if (x_chosen := _x(chosen)) is not None:
            axes.axvline(x_chosen, color=color, linewidth=1.1, linestyle=dashes, zorder=0)


def _around(x: float, xs: Sequence[float]) -> tuple[float, float]:
    """Return the middles between a setting and its neighbours."""
    at = xs.index(x)
    below = (x - xs[at - 1]) / 2 if at else (xs[1] - x) / 2
    above = (xs[at + 1] - x) / 2 if at + 1 < len(xs) else below
    return x - below, x + above


def _marked(advice: Advice, theme: Theme) -> list[tuple[Candidate, str, str]]:
    marks = [(advice.baseline, theme.quiet, ":"), (advice.advised, theme.warning, "--")]
    return [(each, color, dashes) for each, color, dashes in marks if each is not None]


def _label_settings(axes: Axes, advice: Advice, theme: Theme) -> None:
    """Label the lines of the recommended setting and of the baseline, once where they are the
    same.
    """
    word = "recommended" if advice.verdict == "apply" else "best measured"
    word = "keep" if advice.verdict in ("keep", "no_clear_difference") else word
    words = [(advice.advised, word, theme.warning), (advice.baseline, "baseline", theme.quiet)]
    labelled: set[float] = set()
    xs = [x for x, _ in _places(advice.candidates)]
    for each, text, color in words:
        x = _x(each) if each is not None else None
        if x is None or x in labelled:
            continue
        labelled.add(x)
        right = x > (min(xs) + max(xs)) / 2
        where: dict[str, Any] = {
            "xycoords": ("data", "axes fraction"),
            "va": "top",
            "ha": "right" if right else "left",
        }
        axes.annotate(
            f"{text} " if right else f" {text}", (x, 1.0), **where, color=color, fontsize="small"
        )
