"""Sums over the divided slots of a server: the energies of all prefills and of all decodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from wattline.figures import NORMAL_95
from wattline_exporter.requests.division.arrays import FloatArray
from wattline_exporter.requests.division.fit import CONTEXT, SEPARABLE_RATIO
from wattline_exporter.requests.division.half_widths import ERRORS, phase_half_widths_j
from wattline_exporter.requests.division.model import EnergyModel


@dataclass(frozen=True, slots=True)
class EnergyPart:
    """Joules of all requests in one phase, with the half-width of the 95 % interval."""

    joules: float
    half_j: float


@dataclass(frozen=True, slots=True)
class DivisionTotals:
    """Sums over divided slots, and the coefficients of the latest model.

    `phases_j` (2,) are the energies above idle of prefill and decode, `errors_j` (2, ERRORS) their
    signed errors. `guessed_j` is the energy above idle of guessed first tokens, `other_j` the part
    of the energy above idle that may be of other work. `joules_of` are the fitted joules of the
    terms (4), None without a model, and `context_half_j` is the half-width of that of context.
    """

    phases_j: Sequence[float]
    errors_j: Sequence[Sequence[float]]
    guessed_j: float
    other_j: float
    joules_of: Sequence[float] | None
    context_half_j: float

    @classmethod
    def of(
        cls, phases_j: FloatArray, guessed_j: float, other_j: float, model: EnergyModel | None
    ) -> DivisionTotals:
        """Return the totals of phases with their signed errors (2, 1 + ERRORS), with the
        coefficients of a model.
        """
        sums = phases_j[:, 0].tolist(), phases_j[:, 1:].tolist(), guessed_j, other_j
        if model is None:
            return cls(*sums, None, 0.0)
        context_j = model.errors(model.fits[:, CONTEXT])
        half_j = NORMAL_95 * float(np.linalg.norm(context_j))
        return cls(*sums, model.joules_of.tolist(), half_j)

    @classmethod
    def from_json(cls, text: str) -> DivisionTotals:
        """Return the totals of their JSON. Raises ValueError for another text."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"the sums of a division are damaged: {error}") from error

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def plus(self, later: DivisionTotals) -> DivisionTotals:
        """Return the sums with those of a later division, whose model counts."""
        model = later if later.joules_of else self
        return DivisionTotals(
            np.add(self.phases_j, later.phases_j).tolist(),
            np.add(self.errors_j, later.errors_j).tolist(),
            self.guessed_j + later.guessed_j,
            self.other_j + later.other_j,
            model.joules_of,
            model.context_half_j,
        )

    @property
    def other_ratio(self) -> float:
        """Part of the energy above idle that may be of other work."""
        return self.other_j / max(sum(self.phases_j), 1e-9)

    def phases(self, idle_half_j: float) -> tuple[EnergyPart, EnergyPart]:
        """Return the energies above idle of all prefills and of all decodes.

        `idle_half_j` is the error of the idle energy.
        """
        phases_j = np.array(self.phases_j)
        unknown_j = self.guessed_j + self.other_ratio * phases_j
        errors_j = np.array(self.errors_j).reshape(2, ERRORS).T
        halves_j = phase_half_widths_j(phases_j, errors_j, unknown_j, idle_half_j)
        prefill, decode = map(EnergyPart, phases_j.tolist(), halves_j)
        return prefill, decode

    def context_token(self) -> EnergyPart | None:
        """Return the energy of a token of context that a generated token attends to; None if it is
        not significant.
        """
        if self.joules_of is None or self.other_ratio > SEPARABLE_RATIO:
            return None
        best = self.joules_of[CONTEXT]
        part = EnergyPart(best, self.context_half_j + self.other_ratio * best)
        return part if part.joules > 0.0 and part.half_j <= part.joules else None
