"""Plot of a run: power and use of the GPUs over time, and energy by device.

The colours are the colour-blind-safe palette of Okabe and Ito (jfly.uni-koeln.de/color).
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline.figures import energy_text, energy_unit
from wattline_analyzer.core import units
from wattline_analyzer.core.devices import ReportDevice
from wattline_analyzer.core.run_report import Report
from wattline_analyzer.core.sample_table import SampleTable, samples
from wattline_analyzer.core.samples import FloatArray, Samples, rests_s
from wattline_analyzer.report.chart import break_at_gaps, with_neighbors
from wattline_analyzer.report.timeseries import DeviceSeries

_FONTS = ("Inter", "Helvetica Neue", "Arial", "Liberation Sans", "DejaVu Sans")
_POINTS = 1_600
_GAUGE_STEPS = 4
"""Largest number of steps of a gauge's axis, which is low."""
_NEAR_LIMIT = 0.7
"""Smallest ratio of the highest power to the power limit with which the plot includes the limit."""
_FEW = 30
"""Lines of at most so many samples get markers, because a sample between two gaps has no line."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a plot."""

    paper: str
    ink: str
    quiet: str
    line: str
    window: str
    warning: str
    series: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Gauge:
    """Panel of a metric, in another unit by `factor`."""

    title: str
    metric: Metric
    labels: dict[str, str]
    factor: float
    top: float | None = None
    """Upper end of the axis; None for that of the samples."""
    has_zero: bool = True
    """False: the axis covers the samples only, as zero has no meaning."""


_LEAST_PAD = 2.0
"""Least distance of samples from the ends of an axis without zero, so that noise looks small."""
_GAUGES = (
    _Gauge("GPU utilization, %", m.GPU_UTILIZATION, {"engine": "gpu"}, 100.0, 100.0),
    _Gauge("GPU temperature, °C", m.GPU_TEMPERATURE, {"sensor": "gpu"}, 1.0, has_zero=False),
    _Gauge("GPU memory in use, GiB", m.GPU_MEMORY_USED, {}, 2.0**-30),
)

LIGHT = Theme(
    "#ffffff",
    "#1b1f24",
    "#646c76",
    "#dfe3e8",
    "#f3f5f8",
    "#8a5300",
    ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00", "#1b1f24"),
)


def run_plot(
    report: Report,
    power: Sequence[DeviceSeries],
    sensors: SampleTable | None = None,
    theme: Theme = LIGHT,
    form: Literal["png", "svg"] = "png",
) -> bytes:
    """Return the plot; `power` is the result of `power_samples`, `sensors` has the samples of the
    other lines.
    """
    gauges = list(_gauges(report, sensors)) if sensors is not None else []
    width_in = 9.6
    lines_in = 3.1
    gauge_in = 1.15
    head_in = 0.95
    bars_in = 0.55 + 0.27 * len(report.devices)
    height_in = head_in + lines_in + gauge_in * len(gauges) + bars_in + 0.75
    engine = ConstrainedLayoutEngine(
        rect=(0.01, 0.01, 0.98, 1 - head_in / height_in - 0.01), hspace=0.08
    )
    with mpl.rc_context(plot_style(theme)):
        figure = Figure(figsize=(width_in, height_in), layout=engine)
        heights = [lines_in, *[gauge_in] * len(gauges), bars_in]
        lines, *others, bars = figure.subplots(len(heights), 1, height_ratios=heights)
        _draw_power(lines, report, power, theme)
        for axes, (gauge, series) in zip(others, gauges, strict=True):
            _draw_gauge(axes, report, gauge, series, theme)
        below = [lines, *others][-1]
        unit = _time_unit(report.duration_s)[1]
        below.set_xlabel(
            f"Time since the start of the run, {unit} (shaded: the run; lines join samples)"
        )
        _draw_energy(bars, report, theme)
        _draw_title(figure, report, theme)
        target = io.BytesIO()
        metadata: dict[str, Any] = {"Software": "Wattline"} if form == "png" else {"Date": None}
        figure.savefig(target, format=form, dpi=160, metadata=metadata)
    return target.getvalue()


def _gauges(report: Report, sensors: SampleTable) -> Iterator[tuple[_Gauge, list[DeviceSeries]]]:
    """Yield each gauge that has samples of the run, and its lines."""
    for gauge in _GAUGES:
        found = []
        for gpu in report.gpus:
            series = samples(
                sensors, gauge.metric, instance=gpu.instance, uuid=gpu.device, **gauge.labels
            )
            if len(series.between(report.started_at_s, report.started_at_s + report.duration_s)):
                scaled = Samples(series.t, series.value * gauge.factor)
                found.append(DeviceSeries(gpu, gauge.metric, scaled))
        if found:
            yield gauge, found


def plot_style(theme: Theme) -> Any:
    """Return settings of matplotlib, with installed fonts only, because it warns about others at
    each letter.
    """
    installed = set(font_manager.get_font_names())
    return {
        "font.family": [name for name in _FONTS if name in installed],
        "font.size": 9,
        "figure.facecolor": theme.paper,
        "axes.facecolor": theme.paper,
        "axes.edgecolor": theme.line,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.labelcolor": theme.quiet,
        "text.color": theme.ink,
        "xtick.color": theme.line,
        "ytick.color": theme.line,
        "xtick.labelcolor": theme.quiet,
        "ytick.labelcolor": theme.quiet,
        "svg.hashsalt": "wattline",
    }


def _draw_title(figure: Figure, report: Report, theme: Theme) -> None:
    height_in = figure.get_figheight()
    headline = ""
    if report.headline:
        headline = (
            f"{units.marked(energy_text(report.headline), report.energies.headline_estimated)} in "
        )
    left = 0.018
    figure.text(left, 1 - 0.24 / height_in, report.run_id, size="x-large", weight="bold", va="top")
    interval = "" if report.energies.headline_estimated else "  ·  intervals: 95 % CI"
    subtitle = f"{report.workload}  ·  {headline}{units.duration(report.duration_s)}{interval}"
    figure.text(left, 1 - 0.55 / height_in, subtitle, color=theme.quiet, va="top")
    if report.simulated:
        where = (0.982, 1 - 0.24 / height_in)
        figure.text(
            *where, "SIMULATED hardware", color=theme.warning, weight="bold", va="top", ha="right"
        )


def _draw_power(axes: Axes, report: Report, power: Sequence[DeviceSeries], theme: Theme) -> None:
    highest_w = _draw_lines(axes, report, power, theme)
    limits_w = {gpu.power_limit_w for gpu in report.gpus if gpu.power_limit_w is not None}
    near_w = [
        limit_w
        for limit_w in limits_w
        if highest_w is not None and highest_w >= _NEAR_LIMIT * limit_w
    ]
    for limit_w in near_w:
        axes.axhline(limit_w, color=theme.quiet, linewidth=1, linestyle="--")
    axes.set_ylim(0, 1.08 * max([highest_w or 1.0, *near_w]))
    shown = report.gpus or report.devices
    title = "Power, W" + (" (dashed: power limit)" if near_w else "")
    axes.set_title(
        units.marked(title, any(device.estimated for device in shown)),
        loc="left",
        size="medium",
        weight="bold",
    )
    if highest_w is None:
        axes.text(
            0.5, 0.5, "no power samples", transform=axes.transAxes, ha="center", color=theme.quiet
        )


def _draw_gauge(
    axes: Axes, report: Report, gauge: _Gauge, series: Sequence[DeviceSeries], theme: Theme
) -> None:
    highest = _draw_lines(axes, report, series, theme)
    top = 1.08 * (gauge.top or highest or 1.0)
    axes.set_ylim(-0.03 * top, top)  # so that a line at zero is visible
    if highest is not None and not gauge.has_zero:
        lowest = min(float(np.nanmin(np.asarray(line.get_ydata()))) for line in axes.lines)
        pad = max(0.08 * (highest - lowest), _LEAST_PAD)
        axes.set_ylim(lowest - pad, highest + pad)
    axes.yaxis.set_major_locator(MaxNLocator(_GAUGE_STEPS, steps=[1, 2, 2.5, 5, 10]))
    axes.set_title(gauge.title, loc="left", size="medium", weight="bold")


def _draw_lines(
    axes: Axes, report: Report, series: Sequence[DeviceSeries], theme: Theme
) -> float | None:
    """Draw a line per device from zero on; return the highest value, None without samples."""
    scale_s, _ = _time_unit(report.duration_s)
    pad_s = max(0.08 * report.duration_s, 2.0)
    axes.axvspan(0, report.duration_s / scale_s, color=theme.window, linewidth=0, zorder=0)
    shown = report.gpus or report.devices
    for color, (t, values) in _lines(report, series, theme, (-pad_s, report.duration_s + pad_s)):
        width = 1.3 if len(shown) <= 4 else 0.9
        marker = "o" if len(t) <= _FEW else ""
        axes.plot(
            t / scale_s,
            values,
            color=color,
            linewidth=width,
            solid_joinstyle="round",
            marker=marker,
            ms=3,
        )
    highest = max(
        (float(np.nanmax(np.asarray(line.get_ydata()))) for line in axes.lines), default=None
    )
    axes.set_xlim(-pad_s / scale_s, (report.duration_s + pad_s) / scale_s)
    axes.set_ylim(0, 1.08 * (highest or 1.0))
    axes.grid(axis="y", color=theme.line, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=6)
    return highest


def _lines(
    report: Report, power: Sequence[DeviceSeries], theme: Theme, window_s: tuple[float, float]
) -> Iterator[tuple[str, tuple[FloatArray, FloatArray]]]:
    devices = list(report.gpus or report.devices)
    for one in power:
        if one.device not in devices or one.metric == m.GPU_ENERGY:
            continue
        since_start = Samples(one.samples.t - report.started_at_s, one.samples.value)
        visible = with_neighbors(since_start, *window_s)
        if len(visible):
            least_s = rests_s(one.device.instance, untagged=report.untagged)
            line = break_at_gaps(*_downsample(visible.t, visible.value), least_s)
            yield theme.series[devices.index(one.device) % len(theme.series)], line


def _downsample(t: FloatArray, value: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return at most about 1,600 points: the minimum and the maximum of each bucket."""
    if len(t) <= _POINTS:
        return t, value
    kept = []
    for bucket in np.array_split(np.arange(len(t)), _POINTS // 2):
        kept += [bucket[value[bucket].argmin()], bucket[value[bucket].argmax()]]
    index = np.unique(kept)
    return t[index], value[index]


def _time_unit(duration_s: float) -> tuple[float, str]:
    if duration_s < 300:
        return 1.0, "s"
    return (60.0, "min") if duration_s < 3 * 3_600 else (3_600.0, "h")


def _draw_energy(axes: Axes, report: Report, theme: Theme) -> None:
    devices = report.devices
    highest = max(device.energy.number for device in devices)
    joules = energy_unit(highest)[1]
    ranks = np.arange(len(devices))
    colors = [_bar_color(device, report, theme) for device in devices]
    values = np.array([device.energy.number / joules for device in devices])
    halves = np.array([error_bar(device.energy.half_width) / joules for device in devices])
    longest = float(np.fmax(values, values + halves).max()) or 1.0
    bars = axes.barh(ranks, values, color=colors, height=0.5)
    for bar, device in zip(bars, devices, strict=True):
        if device.estimated:  # an outline marks an estimate
            bar.set(facecolor="none", edgecolor=theme.quiet, linestyle="--")
    visible = halves > 0.003 * longest  # shorter error bars are invisible
    axes.errorbar(
        values[visible],
        ranks[visible],
        xerr=halves[visible],
        fmt="none",
        ecolor=theme.quiet,
        elinewidth=1,
        capsize=2,
    )
    for rank, device in zip(ranks, devices, strict=True):
        place: dict[str, Any] = {
            "xycoords": ("axes fraction", "data"),
            "va": "center",
            "ha": "right",
        }
        text = units.marked(energy_text(device.energy, highest), device.estimated)
        axes.annotate(text, (1.0, rank), color=theme.ink, **place)
    axes.set_yticks(ranks, [device.label for device in devices])
    axes.invert_yaxis()
    axes.set_xlim(0, longest * 1.22)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0, labelcolor=theme.ink)
    axes.set_title("Energy by device, 95 % CI", loc="left", size="medium", weight="bold")


def error_bar(half_width: float | None) -> float:
    """Return the length of an error bar to each side; NaN, which is not drawn, where it is
    unknown.
    """
    return math.nan if half_width is None else half_width


def _bar_color(device: ReportDevice, report: Report, theme: Theme) -> str:
    shown = report.gpus or report.devices
    return theme.series[shown.index(device) % len(theme.series)] if device in shown else theme.quiet
