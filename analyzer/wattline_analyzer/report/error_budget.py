"""Uncertainty budget: the contributions to the uncertainty of an energy, in joules.

Random contributions form the 95 % confidence interval, in quadrature. Contributions with limits
only (gaps, aliasing) and those common to all runs on a GPU (gain and offset of its sensor) are
separate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wattline.contract.power_sensors import gpu_limits_j
from wattline.figures import NORMAL_95, Figure, sum_of_one_job
from wattline_analyzer.core import integrate
from wattline_analyzer.core.devices import ReportDevice, UncertaintyBudget
from wattline_analyzer.core.samples import (
    GAP_FACTOR,
    FloatArray,
    Gap,
    Samples,
    gaps,
    median_spacing_s,
)
from wattline_analyzer.core.timeline import Window
from wattline_analyzer.report.aliasing import Beat, updates

_FASTEST = 6.0
_SLOW = 1e-3
"""Loss of autocorrelation below which jumps are rare."""


def device_budget(device: ReportDevice) -> UncertaintyBudget | None:
    """Return the budget of a CPU or DRAM, for which only the ledger's interval is known."""
    if device.energy.half_width is None:
        return None
    return UncertaintyBudget(device.energy.number, edges_j=device.energy.half_width)


def gpu_budget(
    device: ReportDevice,
    power: Samples,
    window: Window,
    beat: Beat | None,
    summed_s: float | None,
) -> UncertaintyBudget:
    """Return the budget of a GPU.

    `beat` is a suspected aliasing. `summed_s` is None if the energy is the ledger's figure. If it
    is the integral of `power`, with the interval of its spacing, it is the time over which each
    value is a mean, 0 for instant values.
    """
    energy_j = device.energy.number
    half_j = device.energy.half_width
    sensor_j = (
        None if device.simulated else gpu_limits_j(energy_j, device.name, device.architecture)
    )
    if summed_s is None:
        return UncertaintyBudget(energy_j, half_j, sensor_j=sensor_j)
    sampling_j = integral_half_j(power, window)
    edges_j = None if half_j == sampling_j else half_j
    if summed_s and half_j is not None and sampling_j is not None:
        edges_j = averaging_half_j(power, window, summed_s) or None
    found = [
        gap
        for gap in gaps(power, window.start_s, window.end_s)
        if gap.duration_s > integrate.SENSOR_S
    ]
    return UncertaintyBudget(
        energy_j,
        edges_j=edges_j,
        sampling_j=None if half_j is None else sampling_j,
        gaps_j=gap_limits_j(power.between(window.start_s, window.end_s), found),
        sensor_j=sensor_j,
        aliasing_j=beat.most_ratio * energy_j if beat else None,
    )


def integral_half_j(power: Samples, window: Window) -> float | None:
    """Return the 95 % half-width of an energy that is the integral of power over a window, without
    gaps.

    The samples next to the window count as well: power may change between them and the window. A
    downsampled series has the sums of one window only; there is no interval for another one.
    """
    spacing_s = median_spacing_s(power)
    if spacing_s is None:
        return None
    if power.exact:
        return sampling_half_j(power) if power.exact_in(window.start_s, window.end_s) else None
    first = np.searchsorted(power.t, window.start_s, "right") - 1
    last = np.searchsorted(power.t, window.end_s) + 1
    touching = Samples(power.t[max(first, 0) : last], power.value[max(first, 0) : last])
    return sampling_half_j(touching, max(GAP_FACTOR * spacing_s, integrate.SENSOR_S))


def averaging_half_j(power: Samples, window: Window, mean_s: float) -> float:
    """Return the error limit of the integral of a power that is a mean over the last `mean_s`.

    The integral from a to b lacks S(b) − S(a), where S(x) is between 0 and `mean_s` times the
    power: half of that if the power was constant in the time before x, and at most `mean_s` / 8
    times the range of the power from it.
    """
    if not mean_s or not len(power):
        return 0.0
    edges_s = np.array([window.start_s, window.end_s])
    start_w, end_w = np.interp(edges_s, power.t, power.value)
    half_j = mean_s / 2 * abs(float(end_w - start_w))
    reach_s = max(mean_s, median_spacing_s(power) or 0.0)
    for at_s in edges_s:
        near_w = power.between(at_s - reach_s, at_s + reach_s).value
        half_j += mean_s / 8 * float(np.ptp(near_w)) if len(near_w) else 0.0
    return half_j


def sampling_half_j(power: Samples, longest_s: float | None = None) -> float | None:
    """Return the 95 % half-width of a trapezoid: one jump between two samples at most has sd
    h·√(ΣΔP²/12).

    A load that changes faster has up to √6 times that. Samples faster than the sensor's updates add
    no information. Gaps are left to `gap_limits_j`.
    """
    if power.exact:
        return _half_width_j(power.exact.jumps_squared, power.exact.jump_correlation)
    found = updates(power)
    if found:
        jumps_w = np.diff(found.value)
        return _half_width_j(found.period_s**2 * float(jumps_w @ jumps_w), _correlation(jumps_w))
    spacing_s = median_spacing_s(power)
    if spacing_s is None:
        return None
    widths_s = np.diff(power.t)
    jumps_w = np.diff(power.value)
    close = widths_s <= (longest_s or GAP_FACTOR * spacing_s)
    return _half_width_j(float((((widths_s * jumps_w)[close]) ** 2).sum()), _correlation(jumps_w))


def _half_width_j(jumps_squared: float, correlation: float) -> float:
    return NORMAL_95 * math.sqrt(_variance_factor(correlation) * jumps_squared / 12)


def _correlation(jumps_w: FloatArray) -> float:
    """Return Σ(jump · next jump) over Σ(jump²)."""
    squares = float(jumps_w @ jumps_w)
    return float(jumps_w[1:] @ jumps_w[:-1]) / squares if squares > 0 else 0.0


def _variance_factor(correlation: float) -> float:
    """Return the variance of the integral over that of one jump per interval, 1 to 6.

    A power with the autocorrelation e^−x from one sample to the next has 6 (coth(x/2) − 2/x) / (1 −
    e^−x): 1 for rare jumps, 6 for independent samples. Its jumps have the correlation (e^−x − 1) /
    2.
    """
    kept = min(1 + 2 * correlation, 1.0)
    if kept >= 1 - _SLOW:
        return 1.0
    if kept <= 0:
        return _FASTEST
    x = -math.log(kept)
    return min(max(6 * (1 / math.tanh(x / 2) - 2 / x) / (1 - kept), 1.0), _FASTEST)


def gap_limits_j(power: Samples, gaps: Sequence[Gap]) -> tuple[float, float] | None:
    """Return the energy in the gaps at the lowest and the highest power of the samples; None
    without a gap.
    """
    if not gaps or not len(power):
        return None
    missing_s = math.fsum(gap.duration_s for gap in gaps)
    return missing_s * float(power.value.min()), missing_s * float(power.value.max())


def total_budget(budgets: Sequence[UncertaintyBudget]) -> UncertaintyBudget:
    """Return the sum over devices. Random errors join as in the energy of the run; limits add.

    A contribution that does not apply to a device is left out of the sum. The interval is unknown
    where that of one device is, and so are its parts.
    """
    edges_j: list[float] = []
    sampling_j: list[float] = []
    if all(one.random_j is not None for one in budgets):
        edges_j = [one.edges_j for one in budgets if one.edges_j is not None]
        sampling_j = [one.sampling_j for one in budgets if one.sampling_j is not None]
    return UncertaintyBudget(
        math.fsum(one.energy_j for one in budgets),
        _random_sum(edges_j),
        _random_sum(sampling_j),
        _limits([one.gaps_j for one in budgets]),
        _limits([one.sensor_j for one in budgets]),
        _sum([one.aliasing_j for one in budgets]),
        _known_sum([one.residual_j for one in budgets]),
    )


def _random_sum(half_widths_j: Sequence[float]) -> float | None:
    return sum_of_one_job(Figure(0.0, half_j) for half_j in half_widths_j).half_width


def _sum(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known else None


def _known_sum(parts: Sequence[float | None]) -> float | None:
    return None if None in parts else _sum(parts)


def _limits(parts: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [part for part in parts if part is not None]
    return (
        (math.fsum(low for low, _ in known), math.fsum(high for _, high in known))
        if known
        else None
    )
