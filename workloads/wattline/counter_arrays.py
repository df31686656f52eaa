"""Increase of a sampled counter in arrays, by the rule of `wattline.counters`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wattline.counters import CounterLimits

_FloatArray = npt.NDArray[np.float64]

UNLIMITED = CounterLimits()
"""Limits of a counter of which only the samples are known."""


@dataclass(frozen=True, slots=True, eq=False)
class CounterSteps:
    """Steps between the samples that count, each an array (K,).

    `kept` are their positions among all samples; the others are late or missing. `increase` is the
    amount since the kept sample before, 0 for the first. `wrapped` and `restarted` say which steps
    are wraps and restarts.
    """

    kept: npt.NDArray[np.intp]
    increase: _FloatArray
    wrapped: npt.NDArray[np.bool_]
    restarted: npt.NDArray[np.bool_]

    def wrapped_amount(self, range_: float) -> _FloatArray:
        """Return the amount of all wraps up to each kept sample (K,), for a counter that wraps at
        `range_`; a counter plus this amount falls at restarts only.
        """
        return np.where(self.wrapped, range_, 0.0).cumsum()


def counter_steps(
    t_s: _FloatArray, value: _FloatArray, limits: CounterLimits = UNLIMITED
) -> CounterSteps:
    """Return the steps of a counter with N samples; `t_s` (N,) rises, `value` (N,) is NaN where a
    value is missing.
    """
    known = np.flatnonzero(~np.isnan(value))
    t_s = t_s[known]
    value = value[known]
    increase = np.diff(value, prepend=value[:1])
    is_kept = np.ones(len(value), dtype=np.bool_)
    wrapped = np.zeros(len(value), dtype=np.bool_)
    restarted = np.zeros(len(value), dtype=np.bool_)
    judged = 0
    for fall in (np.flatnonzero(increase < 0)).tolist():
        if fall <= judged:
            continue
        before = fall - 1
        for at in range(fall, len(value)):
            judged = at
            step = limits.step(float(value[before]), float(value[at]), float(t_s[at] - t_s[before]))
            if step.kind != "late":
                increase[at] = step.increase
                wrapped[at] = step.kind == "wrap"
                restarted[at] = step.kind == "restart"
                break
            is_kept[at] = False
    return CounterSteps(known[is_kept], increase[is_kept], wrapped[is_kept], restarted[is_kept])
