"""Energies of requests over all blocks, for a fit and its variants, with their half-widths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from exporter.request_energy.load import DividedEnergy, LoadBlock
from exporter.request_energy.pieces import FloatArray, IntArray

RANDOM_FACTOR, WINDOW_FACTOR, MODEL_FACTOR, FLOOR_RATIO, SCATTER_FACTOR = 3.0, 2.0, 1.5, 0.15, 1.0
"""Factors of the parts of a half-width: of the fit, of shorter windows, of the other model, of errors of all models,
and of the scaling to the meter. They were chosen so that the intervals contain the Shapley value of simulated servers
in at least 95 % (tests/exporter/request_energy)."""


def half_widths(joules: FloatArray, covariance: FloatArray, steps: FloatArray) -> FloatArray:
    """Return half-widths for the joules (3 + T, N) of the fit, of its two variants, and of its T raised terms.

    `covariance` (T, T) and `steps` (T,) are those of the terms. Parts: random errors of the fit, the difference to a
    fit on shorter windows, the difference to a model with other terms, and a floor for errors of all these models.
    """
    best, short, other = joules[:3]
    slopes = (joules[3:] - best) / steps[:, np.newaxis]
    variance = np.einsum("ki,kl,li->i", slopes, covariance, slopes)
    result: FloatArray = np.sqrt(
        RANDOM_FACTOR**2 * np.maximum(variance, 0.0)
        + (WINDOW_FACTOR * (short - best)) ** 2
        + (MODEL_FACTOR * (other - best)) ** 2
        + (FLOOR_RATIO * best) ** 2
    )
    return result


class RequestSums:
    """Energies of N requests, of which only those in progress are held for each of the V variants."""

    def __init__(self, requests: int, covariance: FloatArray, steps: FloatArray) -> None:
        self._covariance, self._steps = covariance, steps
        self._open = np.empty(0, dtype=np.intp)
        variants = 3 + len(steps)
        self._joules, self._scatter_j2, self._edges_j = np.empty((variants, 0)), np.empty(0), np.empty(0)
        self._totals = np.zeros((variants, 2))
        self.divided = DividedEnergy(np.zeros(requests), np.zeros(requests), np.zeros(requests))
        """Energies of the fit; they are complete after the last block."""
        self.half_j = np.zeros(requests)
        """Half-width of each request, complete when it has ended."""

    def add(
        self, block: LoadBlock, energies: Sequence[DividedEnergy], scatter_j2: FloatArray, edges_j: FloatArray
    ) -> None:
        """Add the energies of a block for the fit and its variants (V), and two other parts of their errors (n,)."""
        at, best = block.requests, energies[0]
        self.divided.prefill_j[at] += best.prefill_j
        self.divided.decode_j[at] += best.decode_j
        self.divided.idle_j[at] += best.idle_j
        joules, scatter, edges = np.array([one.dynamic_j for one in energies]), scatter_j2.copy(), edges_j.copy()
        self._totals += [(one.prefill_j.sum(), one.decode_j.sum()) for one in energies]
        self._finish(np.setdiff1d(np.arange(len(self._open)), self._continued(at, joules, scatter, edges)))
        self._open, self._joules, self._scatter_j2, self._edges_j = at, joules, scatter, edges
        self._finish(np.flatnonzero(block.ended))
        self._keep(np.flatnonzero(~block.ended))

    def close(self) -> None:
        """Complete the half-widths of requests that did not end in the last block."""
        self._finish(np.arange(len(self._open)))

    def total_half_widths_j(self) -> tuple[float, float]:
        """Return the half-widths of the totals of prefill and decode."""
        prefill, decode = (float(half_widths(self._totals[:, [k]], self._covariance, self._steps)[0]) for k in range(2))
        return prefill, decode

    def _continued(self, at: IntArray, joules: FloatArray, scatter: FloatArray, edges: FloatArray) -> IntArray:
        """Add what earlier blocks know of the requests; return their positions among the open ones."""
        _, now, before = np.intersect1d(at, self._open, assume_unique=True, return_indices=True)
        joules[:, now] += self._joules[:, before]
        scatter[now] += self._scatter_j2[before]
        edges[now] += self._edges_j[before]
        return np.asarray(before, dtype=np.intp)

    def _finish(self, chosen: IntArray) -> None:
        model_j = half_widths(self._joules[:, chosen], self._covariance, self._steps)
        other_j2 = SCATTER_FACTOR**2 * self._scatter_j2[chosen] + self._edges_j[chosen] ** 2
        self.half_j[self._open[chosen]] = np.hypot(model_j, np.sqrt(other_j2))

    def _keep(self, chosen: IntArray) -> None:
        self._open, self._edges_j = self._open[chosen], self._edges_j[chosen]
        self._scatter_j2 = self._scatter_j2[chosen]
        self._joules = self._joules[:, chosen]
