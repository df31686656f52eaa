"""Energies of requests over all blocks, for a fit and its variants, with their half-widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from wattline.figures import NORMAL_95
from wattline_exporter.requests.division.fit import SHARED_STEP
from wattline_exporter.requests.division.load import DividedEnergy, LoadBlock
from wattline_exporter.requests.division.pieces import FloatArray, IntArray, Mask, amounts_at
from wattline_exporter.requests.division.spans import IDLE_RATIO

FLOOR_RATIO, ROLE_RATIO, PHASE_RATIO = 0.02, 0.04, 0.05
"""Least standard errors: of a request's energy, relative to it, of a server and of a role; of the
energies of both phases, relative to that of prefill, which is in the same steps as decode."""
GUESS_RATIO = 0.12
"""Standard error of the energy of a request whose first token is a guess, relative to it."""


def variances(joules: FloatArray, covariance: FloatArray, steps: FloatArray) -> FloatArray:
    """Return the variances of the joules (2 + T, N) of the fit, of its other model, and of its T
    raised terms.

    `covariance` (T, T) and `steps` (T,) belong to the terms. See
    `wattline_exporter.requests.division.model`. The factors there and here were chosen such that
    the intervals contain the Shapley value of simulated servers in at least 95 %, in each class of
    traffic (tests/calibration/requests.py).
    """
    best, other = joules[:2]
    slopes = (joules[2:] - best) / steps[:, np.newaxis]
    variance = np.einsum("ki,kl,li->i", slopes, covariance, slopes)
    result: FloatArray = np.maximum(variance, 0.0) + (other - best) ** 2
    return result


def guess_j2(dynamic_j: FloatArray, part: FloatArray | float) -> FloatArray:
    """Return the variances of energies by guesses of first tokens.

    `part` is 1 for a request whose first token is a guess, and for others the part of the server's
    energy in such requests, which share slots with them.
    """
    result: FloatArray = part * (GUESS_RATIO * dynamic_j) ** 2
    return result


def whole_half_widths_j(
    half_j: FloatArray,
    dynamic_j: FloatArray,
    idle_j: FloatArray,
    idle_known: Mask | np.bool_,
    other_ratio: float,
) -> FloatArray:
    """Return the half-widths with the errors of the idle power and of work that no request reports.

    A part of an assumed idle energy may be caused by the request. A part of `other_ratio` may be of
    other work.
    """
    with_idle_j = np.where(idle_known, np.hypot(half_j, IDLE_RATIO * idle_j), half_j + idle_j)
    result: FloatArray = with_idle_j + other_ratio * dynamic_j
    return result


def phase_half_widths_j(
    totals_j: FloatArray,
    covariance: FloatArray,
    steps: FloatArray,
    unknown_j: FloatArray | float,
    idle_half_j: float,
) -> tuple[float, float]:
    """Return the half-widths of the energies of prefill and decode, (2 + T, 2) as for `variances`.

    `unknown_j` is energy that may be of the other phase or of other work. `idle_half_j` is the
    error of the idle energy, of which each phase has its part.
    """
    phase_j2 = (PHASE_RATIO * totals_j[0, 0]) ** 2
    half_j = unknown_j + NORMAL_95 * np.sqrt(variances(totals_j, covariance, steps) + phase_j2)
    prefill_j, decode_j = np.hypot(
        half_j, idle_half_j / max(float(totals_j[0].sum()), 1e-9) * totals_j[0]
    )
    return float(prefill_j), float(decode_j)


@dataclass(frozen=True, slots=True)
class DividedRequests:
    """Joules of requests that are final. `missing_s` is the time of each one without a measured
    energy.
    """

    keys: np.ndarray
    prefill_j: FloatArray
    decode_j: FloatArray
    idle_j: FloatArray
    half_j: FloatArray
    missing_s: FloatArray
    separable: Mask

    @property
    def total_j(self) -> FloatArray:
        return self.prefill_j + self.decode_j + self.idle_j

    def with_missing(self, durations_s: FloatArray) -> DividedRequests:
        """Return them with half-widths that have the energy of the missing time, at the mean power
        of the rest.
        """
        if not self.missing_s.any():
            return self
        measured_s = durations_s - self.missing_s
        missing_j = np.where(
            measured_s > 0.0, self.total_j * self.missing_s / np.maximum(measured_s, 1e-3), 0.0
        )
        return replace(self, half_j=self.half_j + missing_j)


class GroupSums:
    """Energies of G groups with their errors, by the number of the group of each request (N,).

    Errors of requests cancel in their sum where one has what another one lacks: the model and the
    scaling divide an energy that is measured.
    """

    def __init__(self, numbers: npt.NDArray[np.int32], variants: int) -> None:
        self._numbers, self._count = numbers, int(numbers.max(initial=-1)) + 1
        self._joules, self._idle_j = np.zeros((variants, self._count)), np.zeros(self._count)
        self._scatter_j2, self._meter_j2 = np.zeros(self._count), np.zeros(self._count)

    def add_idle(self, requests: IntArray, idle_j: FloatArray) -> None:
        self._idle_j += amounts_at(self._numbers[requests], idle_j, self._count)

    def add(
        self, requests: IntArray, joules: FloatArray, scatter_j2: FloatArray, meter_j2: FloatArray
    ) -> None:
        """Add requests that have ended: joules of all variants (V, n), and two variances (n,)."""
        numbers = self._numbers[requests]
        self._joules += [amounts_at(numbers, each, self._count) for each in joules]
        self._scatter_j2 += amounts_at(numbers, scatter_j2, self._count)
        self._meter_j2 += amounts_at(numbers, meter_j2, self._count)

    @property
    def whole(self) -> GroupSums:
        """All requests as one group."""
        one = GroupSums(np.zeros(1, dtype=np.int32), len(self._joules))
        one._joules, one._idle_j = (
            self._joules.sum(axis=1, keepdims=True),
            self._idle_j.sum(keepdims=True),
        )
        one._scatter_j2, one._meter_j2 = (
            self._scatter_j2.sum(keepdims=True),
            self._meter_j2.sum(keepdims=True),
        )
        return one

    def half_widths_j(
        self,
        covariance: FloatArray,
        steps: FloatArray,
        floor: float,
        other_ratio: float,
        *,
        idle_known: bool,
    ) -> FloatArray:
        """Return the half-widths of the energies of the groups, (G,)."""
        if not self._count:
            return np.empty(0)
        dynamic_j = self._joules[0]
        floor_j = floor * np.minimum(
            dynamic_j, dynamic_j.sum() - dynamic_j
        )  # of the group and of all others
        scatter_j2 = np.minimum(self._scatter_j2, self._scatter_j2.sum() - self._scatter_j2)
        model_j2 = variances(self._joules, covariance, steps) + floor_j**2
        half_j = NORMAL_95 * np.sqrt(model_j2 + scatter_j2 + self._meter_j2)
        return whole_half_widths_j(
            half_j, dynamic_j, self._idle_j, np.bool_(idle_known), other_ratio
        )


class RequestSums:
    """Energies of N requests, of which only those in progress are held for each of the V variants.

    `groups` (N,) are the numbers of their groups.
    """

    def __init__(
        self, groups: npt.NDArray[np.int32], covariance: FloatArray, steps: FloatArray
    ) -> None:
        self._covariance, self._steps = covariance, steps
        self._groups, requests = GroupSums(groups, 2 + len(steps)), len(groups)
        self._open = np.empty(0, dtype=np.intp)
        self._floor = FLOOR_RATIO if len(steps) == len(SHARED_STEP) else ROLE_RATIO
        variants = 2 + len(steps)
        self._joules, self._scatter_j2, self._meter_j2 = (
            np.empty((variants, 0)),
            np.empty(0),
            np.empty(0),
        )
        self._totals = np.zeros((variants, 2))
        self.divided = DividedEnergy(np.zeros(requests), np.zeros(requests), np.zeros(requests))
        """Energies of the fit; they are complete after the last block."""
        self.half_j = np.zeros(requests)
        """Half-width of each request, complete when it has ended."""

    def add(
        self,
        block: LoadBlock,
        energies: Sequence[DividedEnergy],
        scatter_j2: FloatArray,
        meter_j2: FloatArray,
    ) -> None:
        """Add the energies of a block for the fit and its variants (V), and two other parts of
        their errors (n,).
        """
        at, best = block.requests, energies[0]
        self.divided.prefill_j[at] += best.prefill_j
        self.divided.decode_j[at] += best.decode_j
        self.divided.idle_j[at] += best.idle_j
        self._groups.add_idle(at, best.idle_j)
        joules, scatter, meter = (
            np.array([one.dynamic_j for one in energies]),
            scatter_j2.copy(),
            meter_j2.copy(),
        )
        self._totals += [(one.prefill_j.sum(), one.decode_j.sum()) for one in energies]
        self._finish(
            np.setdiff1d(np.arange(len(self._open)), self._continued(at, joules, scatter, meter))
        )
        self._open, self._joules, self._scatter_j2, self._meter_j2 = at, joules, scatter, meter
        self._finish(np.flatnonzero(block.ended))
        self._keep(np.flatnonzero(~block.ended))

    def close(self) -> None:
        """Complete the half-widths of requests that did not end in the last block."""
        self._finish(np.arange(len(self._open)))

    def total_half_widths_j(
        self, untimed_j: float, idle_half_j: float, other_ratio: float
    ) -> tuple[float, float]:
        """Return the half-widths of the totals of prefill and decode.

        `untimed_j` is the energy of both in requests whose first token is not known: their parts
        are a guess. A part of `other_ratio` may be of other work.
        """
        unknown_j = untimed_j + other_ratio * self._totals[0]
        return phase_half_widths_j(
            self._totals, self._covariance, self._steps, unknown_j, idle_half_j
        )

    def group_half_widths_j(
        self, other_ratio: float, *, idle_known: bool
    ) -> tuple[FloatArray, float]:
        """Return the half-widths of the energies of the groups (G,), and of all requests
        together.
        """
        found = [
            each.half_widths_j(
                self._covariance, self._steps, self._floor, other_ratio, idle_known=idle_known
            )
            for each in (self._groups, self._groups.whole)
        ]
        return found[0], float(found[1].item())

    def _continued(
        self, at: IntArray, joules: FloatArray, scatter: FloatArray, meter: FloatArray
    ) -> IntArray:
        """Add what earlier blocks know of the requests; return their positions among the open
        ones.
        """
        _, now, before = np.intersect1d(at, self._open, assume_unique=True, return_indices=True)
        joules[:, now] += self._joules[:, before]
        scatter[now] += self._scatter_j2[before]
        meter[now] += self._meter_j2[before]
        return np.asarray(before, dtype=np.intp)

    def _finish(self, chosen: IntArray) -> None:
        joules = self._joules[:, chosen]
        model_j2 = variances(joules, self._covariance, self._steps) + (self._floor * joules[0]) ** 2
        scatter_j2, meter_j2 = self._scatter_j2[chosen], self._meter_j2[chosen]
        self.half_j[self._open[chosen]] = NORMAL_95 * np.sqrt(model_j2 + scatter_j2 + meter_j2)
        self._groups.add(self._open[chosen], joules, scatter_j2, meter_j2)

    def _keep(self, chosen: IntArray) -> None:
        self._open, self._meter_j2 = self._open[chosen], self._meter_j2[chosen]
        self._scatter_j2 = self._scatter_j2[chosen]
        self._joules = self._joules[:, chosen]
