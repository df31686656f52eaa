"""Pictures of sweeps: one column for each, so that training and generation stand side by side.

From top to bottom: what the objective counts, units of work a second, power and temperature, each by the limit. Small
points are runs, large ones settings with their 95 % interval; a curve goes from the first to the last setting only.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analyzer import stats
from analyzer.advice import Advice, Candidate, Span
from analyzer.report import advice_text
from analyzer.report.plots import LIGHT, Look, Theme, style
from analyzer.sweep import SweepRun

_WIDTH_IN, _ROW_IN, _HEAD_IN = 5.2, 2.05, 0.85
_NARROW = 56


def picture(advices: Sequence[Advice], theme: Theme = LIGHT) -> bytes:
    """A PNG of all sweeps with two settings or more; of the others it shows only the answer."""
    columns = len(advices)
    height_in = 4 * _ROW_IN + _HEAD_IN
    with mpl.rc_context(style(Look(theme))):
        figure = Figure(figsize=(_WIDTH_IN * columns, height_in), layout="constrained")
        grid = figure.subplots(4, columns, squeeze=False, sharex="col")
        for column, advice in enumerate(advices):
            _column([grid[row, column] for row in range(4)], advice, theme)
        target = io.BytesIO()
        figure.savefig(target, format="png", dpi=150, metadata={"Software": "Wattline"})
    return target.getvalue()


def _column(rows: list[Axes], advice: Advice, theme: Theme) -> None:
    rows[0].set_title(_heading(advice), loc="left", size="medium", pad=24)
    if not advice.candidates or advice.costs is None:
        for axes in rows:
            axes.set_axis_off()
        return
    clock = all(each.setting.sm_clock_hz is not None for each in advice.candidates)
    families = list(dict.fromkeys(each.setting.others for each in advice.candidates))
    for number, others in enumerate(families):
        members = [each for each in advice.candidates if each.setting.others == others and _x(each) is not None]
        color = theme.series[number % len(theme.series)]
        _family(rows, advice, members, color)
        if others and members:
            name = ", ".join(f"{label}={text}" for label, text in others)
            rows[0].plot([], [], color=color, label=name)
    if families != [()]:
        rows[0].legend(frameon=False, fontsize="small")
    unit = (advice.costs.unit or "runs").replace("_", " ")
    for axes, title in zip(
        rows, (advice.costs.measure, f"{unit}/s", "power, W (95th percentile)", "temperature, °C"), strict=True
    ):
        _frame(axes, title, advice, theme)
    rows[-1].set_xlabel("SM clock, MHz" if clock else "power limit, W")


def _heading(advice: Advice) -> str:
    """The sweep and its answer, broken at words."""
    lines, width = [advice.sweep.title], 0
    for word in advice_text.headline(advice).split():
        if width == 0 or width + len(word) > _NARROW:
            lines.append(word)
            width = len(word)
        else:
            lines[-1] += f" {word}"
            width += len(word) + 1
    return "\n".join(lines)


def _x(each: Candidate) -> float | None:
    setting = each.setting
    if setting.sm_clock_hz is not None:
        return setting.sm_clock_hz / 1e6
    return setting.power_limit_w or max((run.limit_w for run in each.runs if run.limit_w), default=None)


def _family(rows: list[Axes], advice: Advice, members: list[Candidate], color: str) -> None:
    assert advice.costs
    cost_of = dict(zip((run.run_id for run in advice.sweep.runs), advice.costs.cost, strict=True))
    time_of = dict(zip((run.run_id for run in advice.sweep.runs), advice.costs.time_s, strict=True))
    shown = advice.costs.shown
    for each in members:
        x = _x(each)
        assert x is not None
        _setting(rows[0], x, [shown(cost_of[run.run_id]) for run in each.runs], _mapped(each.cost, shown), color)
        _setting(rows[1], x, [1 / time_of[run.run_id] for run in each.runs], each.rate, color)
        _facts(rows, x, each.runs, color)
    places = sorted((x, shown(each.cost.value), each.fitted_rate) for each in members if (x := _x(each)) is not None)
    if len(places) > 1 and len({x for x, _, _ in places}) == len(places):
        for axes, values in ((rows[0], [y for _, y, _ in places]), (rows[1], [rate for _, _, rate in places])):
            axes.plot(*stats.curve([x for x, _, _ in places], values), color=color, linewidth=1.2, zorder=1)


def _facts(rows: list[Axes], x: float, runs: Sequence[SweepRun], color: str) -> None:
    powers_w = [run.p95_power_w or run.mean_power_w for run in runs]
    for axes, values in ((rows[2], powers_w), (rows[3], [run.temperature_celsius for run in runs])):
        known = [value for value in values if value is not None]
        axes.scatter([x] * len(known), known, s=14, color=color, alpha=0.45, linewidths=0, zorder=2)


def _mapped(span: Span, shown: object) -> Span:
    assert callable(shown)
    if span.low is None or span.high is None:
        return Span(shown(span.value))
    return Span(shown(span.value), *sorted((shown(span.low), shown(span.high))))


def _setting(axes: Axes, x: float, points: list[float], span: Span, color: str) -> None:
    axes.scatter([x] * len(points), points, s=14, color=color, alpha=0.45, linewidths=0, zorder=2)
    axes.plot([x], [span.value], "o", color=color, markersize=5, zorder=3)
    if span.low is not None and span.high is not None:
        halves = [[span.value - span.low], [span.high - span.value]]
        axes.errorbar([x], [span.value], yerr=halves, fmt="none", ecolor=color, elinewidth=1.2, capsize=3, zorder=3)


def _frame(axes: Axes, title: str, advice: Advice, theme: Theme) -> None:
    axes.grid(axis="y", color=theme.line, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=5)
    axes.margins(x=0.06, y=0.14)
    axes.text(0, 1.03, title, transform=axes.transAxes, color=theme.quiet, weight="bold", va="bottom")
    places = [x for each in advice.candidates if (x := _x(each)) is not None]
    if title.startswith("power") and places and advice.candidates[0].setting.power_limit_w is not None:
        ends = np.array([min(places), max(places)])
        axes.plot(ends, ends, color=theme.quiet, linewidth=0.9, linestyle=":", zorder=0)
        axes.annotate("the limit", (ends[1], ends[1]), color=theme.quiet, ha="right", va="bottom", fontsize="small")
    if advice.advised is None or (chosen := _x(advice.advised)) is None:
        return
    axes.axvline(chosen, color=theme.warning, linewidth=1.1, linestyle="--", zorder=0)
    if title == (advice.costs.measure if advice.costs else ""):
        word = "advised" if advice.verdict == "apply" else "best measured"
        word = "leave it" if advice.verdict in ("keep", "no_clear_difference") else word
        where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "va": "top", "ha": "left"}
        axes.annotate(f" {word}", (chosen, 1.0), **where, color=theme.warning, fontsize="small")
