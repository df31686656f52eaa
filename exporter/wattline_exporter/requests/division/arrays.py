"""Types of arrays, and sums, quotients and orders of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def amounts_at(
    index: IntArray | npt.NDArray[np.int32], amount: FloatArray, length: int
) -> FloatArray:
    """Return the sums of the amounts by index, (length,)."""
    return np.bincount(index, amount, minlength=length).astype(np.float64)


def time_order(t_s: FloatArray) -> IntArray:
    """Return the order of N times: a radix sort by 65,536 parts of their range, then one within
    these parts.
    """
    first_s = t_s.min()
    last_s = t_s.max()
    parts = ((t_s - first_s) * (65_535 / max(last_s - first_s, 1e-9))).astype(np.uint16)
    roughly = np.argsort(parts, kind="stable")
    order: IntArray = roughly[np.argsort(t_s[roughly], kind="stable")]
    return order


def quotient(amount: FloatArray, divisor: FloatArray) -> FloatArray:
    """Return amount / divisor, 0 where the divisor is 0."""
    return np.divide(amount, divisor, out=np.zeros_like(amount), where=divisor > 0.0)
