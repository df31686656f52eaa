"""Requests of a run with their energies, and figures of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wattline.contract.work import energy_of_one
from wattline.figures import Figure, sum_of_independent
from wattline_analyzer.core.run_report import Price
from wattline_analyzer.core.samples import FloatArray
from wattline_analyzer.requests.table import RequestGroup, RequestTable, energies_j, interval_of
from wattline_exporter.requests.division.division import RequestEnergies
from wattline_exporter.requests.division.totals import EnergyPart


@dataclass(frozen=True, slots=True)
class RequestEnergyReport:
    """Requests with their energies, and the options of the command; `run_id` is None for a time
    range.
    """

    run_id: str | None
    table: RequestTable
    energies: RequestEnergies
    groups: Sequence[RequestGroup]
    by: Sequence[str]
    idle_shared: bool
    notes: Sequence[str]
    price: Price | None = None
    grams_per_kwh: float | None = None
    warnings: Sequence[str] = ()
    measured_half_j: float | None = None
    """Half-width of the energy of the GPUs, None if it is not known."""

    @property
    def title(self) -> str:
        return f"run {self.run_id}" if self.run_id else "time range"

    @property
    def tokens_j(self) -> tuple[Figure | None, Figure | None, Figure | None]:
        """Energy above idle of a prompt token, a generated token and 1,000 tokens of context."""
        energies = self.energies
        spans = self.table.spans
        context = interval_of(energies.context_token)
        return (
            _of_one(energies.prefill, float(spans.prefilled_tokens.sum())),
            _of_one(energies.decode, float(spans.generated_tokens.sum())),
            context.scaled(1_000) if context else None,
        )

    @property
    def idle_share(self) -> Figure | None:
        """Part of the measured energy that is idle energy, None for an idle power of 0 W, which is
        an assumption.
        """
        energies = self.energies
        whole_j = energies.measured_j
        is_known = whole_j and energies.idle_j
        return (
            Figure(energies.idle_j, energies.idle_half_j).scaled(1 / whole_j) if is_known else None
        )

    @property
    def joules(self) -> FloatArray:
        return energies_j(self.energies, slice(None), idle_shared=self.idle_shared)

    @property
    def median(self) -> Figure:
        """Median energy of a request, which is between those of the lower and of the upper ends of
        the intervals.
        """
        joules = self.joules
        half_j = self.energies.half_j
        middle_j = float(np.median(joules))
        ends_j = (
            float(np.median(np.maximum(joules - half_j, 0.0))),
            float(np.median(joules + half_j)),
        )
        return Figure(middle_j, max(middle_j - ends_j[0], ends_j[1] - middle_j))

    @property
    def measured(self) -> Figure:
        """Energy of the GPUs."""
        return Figure(self.energies.measured_j, self.measured_half_j)

    @property
    def assigned(self) -> Figure:
        """Energy of all requests."""
        return Figure(float(self.joules.sum()), self.energies.total_half_j)

    @property
    def rest(self) -> Figure:
        """Energy that no request has; with `idle_shared` off, all idle energy is in it."""
        apart_j = 0.0 if self.idle_shared else float(self.energies.divided.idle_j.sum())
        rest_j = self.energies.unassigned_j + apart_j
        return sum_of_independent(
            [Figure(rest_j, self.energies.total_half_j), Figure(0.0, self.measured_half_j)]
        )


def _of_one(energy: EnergyPart | None, tokens: float) -> Figure | None:
    figure = interval_of(energy)
    return None if figure is None else energy_of_one(figure, tokens)
