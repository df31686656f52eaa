"""Energies of requests and of groups with the parts of their errors, and half-widths of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattline.figures import NORMAL_95
from wattline_exporter.requests.division.arrays import FloatArray, IntArray, amounts_at, quotient
from wattline_exporter.requests.division.spans import IDLE_RATIO

ERRORS = 4
"""Number of the signed errors: three directions of the fit, and the difference to the other model.
"""
FLOOR_RATIO = 0.02
ROLE_RATIO = 0.04
PHASE_RATIO = 0.05
"""Least standard errors: of a request's energy, relative to it, of a server and of a role; of the
energies of both phases, relative to that of prefill, which is in the same steps as decode."""
GUESS_RATIO = 0.12
"""Standard error of the energy of a request whose first token is a guess, relative to it."""


class Energies(NamedTuple):
    """Joules of N requests, or of N groups of them, with the parts of their errors.

    The factors of the parts were chosen such that the intervals contain the Shapley value of
    simulated servers in at least 95 %, in each class of traffic (tests/calibration/requests.py).
    """

    prefill_j: FloatArray
    decode_j: FloatArray
    idle_j: FloatArray
    errors_j: FloatArray
    """Signed standard errors (ERRORS, N) of the model, which add with their signs."""
    scatter_j2: FloatArray
    """Variances by the scaling to the measured energies, which moves energy between requests."""
    meter_j2: FloatArray
    """Variances by the meter, which are independent."""
    guessed_j: FloatArray
    """Energy above idle of requests whose first token is a guess."""
    beside_guesses_j: FloatArray
    """The part of the energy above idle that such requests have in that of the server: the others
    share slots with them.
    """
    known_idle_j: FloatArray
    """Idle energy of a measured idle power."""
    limit_j: FloatArray
    """Limits of errors, which are added: other work, idle energy of an assumed power, and energy of
    missing time."""
    most_j: FloatArray
    """Energy of all slots of each request, and that of missing time."""
    floor_ratio: float

    @property
    def dynamic_j(self) -> FloatArray:
        """Energy above idle."""
        return self.prefill_j + self.decode_j

    @property
    def total_j(self) -> FloatArray:
        """Energy with idle energy."""
        return self.dynamic_j + self.idle_j

    def with_missing(self, missing_s: FloatArray, durations_s: FloatArray) -> Energies:
        """Return them with the energy of missing times in the half-widths, at the mean power of the
        rest.
        """
        measured_s = durations_s - missing_s
        power_w = np.where(measured_s > 0.0, self.total_j / np.maximum(measured_s, 1e-3), 0.0)
        missing_j = power_w * missing_s
        return self._replace(limit_j=self.limit_j + missing_j, most_j=self.most_j + missing_j)

    def by_group(self, numbers: IntArray | npt.NDArray[np.int32], count: int) -> Energies:
        """Return the sums of groups, by the number of the group of each one (N,)."""
        columns = {
            name: amounts_at(numbers, column, count)
            for name, column in self._asdict().items()
            if name not in {"errors_j", "floor_ratio"}
        }
        errors_j = np.array([amounts_at(numbers, each, count) for each in self.errors_j])
        return Energies(**columns, errors_j=errors_j, floor_ratio=self.floor_ratio)

    def plus(self, others: Energies) -> Energies:
        """Return the sums with those of the same groups."""
        columns = {
            name: getattr(self, name) + getattr(others, name)
            for name in self._fields
            if name != "floor_ratio"
        }
        return Energies(**columns, floor_ratio=self.floor_ratio)


def half_widths_j(energies: Energies) -> FloatArray:
    """Return the half-widths of the energies of requests, (N,)."""
    dynamic_j = energies.dynamic_j
    guess_j2 = GUESS_RATIO**2 * _guessed_j(energies) * dynamic_j
    random_j2 = energies.scatter_j2 + energies.meter_j2 + guess_j2
    return np.minimum(_half_widths_j(energies, dynamic_j, random_j2), energies.most_j)


def group_half_widths_j(groups: Energies) -> FloatArray:
    """Return the half-widths of the energies of groups, (G,), which are all of a server.

    The division moves energy between requests, so what a group has too much the others lack: an
    error is at most that of all others.
    """
    dynamic_j = groups.dynamic_j
    moved_j = np.minimum(dynamic_j, dynamic_j.sum() - dynamic_j)
    scatter_j2 = np.minimum(groups.scatter_j2, groups.scatter_j2.sum() - groups.scatter_j2)
    guess_j2 = quotient(_guessed_j(groups), dynamic_j) * (GUESS_RATIO * moved_j) ** 2
    half_j = _half_widths_j(groups, moved_j, scatter_j2 + groups.meter_j2 + guess_j2)
    return np.minimum(half_j, float((dynamic_j + groups.idle_j).sum()))


def _guessed_j(energies: Energies) -> FloatArray:
    """Return the energy above idle that depends on guesses of first tokens."""
    return np.maximum(energies.guessed_j, energies.beside_guesses_j)


def _half_widths_j(energies: Energies, moved_j: FloatArray, random_j2: FloatArray) -> FloatArray:
    """Return the half-widths by the variances (N,) beside those of the model, and by the energies
    (N,) that have the least error.
    """
    model_j2 = (energies.errors_j**2).sum(axis=0) + (energies.floor_ratio * moved_j) ** 2
    random_j = NORMAL_95 * np.sqrt(model_j2 + random_j2)
    half_j: FloatArray = np.hypot(random_j, IDLE_RATIO * energies.known_idle_j) + energies.limit_j
    return half_j


def phase_half_widths_j(
    phases_j: FloatArray, errors_j: FloatArray, unknown_j: FloatArray, idle_half_j: float
) -> tuple[float, float]:
    """Return the half-widths of the energies of prefill and decode (2,), by their errors (ERRORS,
    2).

    `unknown_j` (2,) is energy that may be of the other phase or of other work. `idle_half_j` is the
    error of the idle energy, of which each phase has its part.
    """
    variance_j2 = (errors_j**2).sum(axis=0) + (PHASE_RATIO * phases_j[0]) ** 2
    half_j = unknown_j + NORMAL_95 * np.sqrt(variance_j2)
    prefill_j, decode_j = np.hypot(
        half_j, idle_half_j / max(float(phases_j.sum()), 1e-9) * phases_j
    )
    return float(prefill_j), float(decode_j)
