"""Energy of each request to a server, with its uncertainty; with the rest, the energies add up to
the meter's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from wattline.figures import NORMAL_95
from wattline_exporter.requests.division.fit import (
    SEPARABLE_RATIO,
    SEPARATE_TOKENS,
    SHARED_STEP,
    is_separable,
)
from wattline_exporter.requests.division.load import (
    TERMS,
    DividedEnergy,
    load_blocks,
    quotient,
)
from wattline_exporter.requests.division.model import (
    MIN_FIT_SLOTS,
    OTHER_FIT,
    EnergyModel,
    fit_model,
)
from wattline_exporter.requests.division.pieces import FloatArray, Mask, amounts_at
from wattline_exporter.requests.division.spans import EnergySlots, QuietPower, RequestSpans
from wattline_exporter.requests.division.sums import (
    RequestSums,
    guess_j2,
    variances,
    whole_half_widths_j,
)

_CHUNK = 1_000_000

CONTEXT = TERMS.index("context_token")
Role = Literal["prefill", "decode"]
_ROLE_TERMS: dict[Role | None, tuple[Sequence[int], Sequence[int]]] = {
    None: (SHARED_STEP, SEPARATE_TOKENS),
    "prefill": (SHARED_STEP[:1], SEPARATE_TOKENS[:1]),
    "decode": (SHARED_STEP[1:], SEPARATE_TOKENS[1:]),
}
"""Terms of the model and of the alternative one, by role."""


@dataclass(frozen=True, slots=True)
class EnergyPart:
    """Joules of all requests in one phase, with the half-width of the 95 % interval."""

    joules: float
    half_j: float


@dataclass(frozen=True, slots=True)
class RequestEnergies:
    """Joules of N requests. `unassigned_j` is the energy of the slots less that of their time with
    requests.

    `half_j` are the half-widths of the 95 % intervals of `dynamic_j`, `idle_half_j` is the one of
    `idle_j`. `prefill` and `decode` are the totals of all requests, None where the data cannot
    separate them. `context_token` is the energy of a token of context that a generated token
    attends to, None if it is not significant. `joules_of` (4,) are the fitted joules of the terms.
    `group_half_j` (G,) are the half-widths of the energies of groups, `total_half_j` is the one of
    all requests together. `other_half_j` is the part of all half-widths by work that no request
    reports.
    """

    divided: DividedEnergy
    half_j: FloatArray
    group_half_j: FloatArray
    total_half_j: float
    unassigned_j: float
    measured_j: float
    idle_j: float
    idle_half_j: float
    prefill: EnergyPart | None
    decode: EnergyPart | None
    context_token: EnergyPart | None
    joules_of: FloatArray
    other_half_j: float

    @property
    def dynamic_j(self) -> FloatArray:
        return self.divided.dynamic_j

    @property
    def total_j(self) -> FloatArray:
        """Energy of each request with its share of the idle energy."""
        return self.divided.dynamic_j + self.divided.idle_j


def divide_energy(
    spans: RequestSpans,
    slots: EnergySlots,
    *,
    role: Role | None = None,
    untimed: Mask | None = None,
    groups: npt.NDArray[np.int32] | None = None,
) -> RequestEnergies:
    """Return the energy of each request; `untimed` (N,) is the mask of those whose first token is
    not known.

    `groups` (N,) are the numbers of groups whose half-widths are returned, one group of all
    requests by default. `role` is the phase for which the devices work; None for both. Raises
    ValueError with less than MIN_FIT_SLOTS slots that have requests.
    """
    measured_j, slots = float(slots.joules.sum()), slots.without_deficits()
    terms, busy, covered_s = _terms(spans, slots)
    if np.count_nonzero(busy) < MIN_FIT_SLOTS:
        raise ValueError(
            f"{np.count_nonzero(busy)} samples of energy during requests, at least {MIN_FIT_SLOTS} "
            "are needed"
        )
    used, other_terms = _ROLE_TERMS[role]
    slots = QuietPower().add(slots, busy)
    dynamic_j = slots.dynamic_j(slots.widths_s - covered_s)[busy]
    other_ratio = slots.other_ratio(dynamic_j, covered_s)
    model = fit_model(terms[busy], dynamic_j, float(np.median(slots.widths_s)), used, other_terms)
    groups = np.zeros(len(spans), dtype=np.int32) if groups is None else groups
    sums = RequestSums(groups, model.covariance, model.steps)
    for block in load_blocks(spans, slots):
        energies = [
            block.divide(slots, each, None if k == OTHER_FIT else model.joules_of)
            for k, each in enumerate(model.fits)
        ]
        sums.add(
            block,
            energies,
            block.scatter_j2(slots, model.joules_of),
            block.meter_j2(slots, energies[0]),
        )
    sums.close()
    divided = sums.divided
    totals = float(divided.prefill_j.sum()), float(divided.decode_j.sum())
    untimed_j = (
        0.0
        if untimed is None
        else float((divided.prefill_j[untimed] + divided.decode_j[untimed]).sum())
    )
    idle_half_j = slots.idle_ratio * float(divided.idle_j.sum())
    half_widths_j = sums.total_half_widths_j(untimed_j, idle_half_j, other_ratio)
    prefill, decode = (
        EnergyPart(total, half) for total, half in zip(totals, half_widths_j, strict=True)
    )
    separable = is_separable(model.windows, totals, half_widths_j)
    group_half_j, total_half_j = sums.group_half_widths_j(other_ratio, idle_known=slots.idle_known)
    if untimed is not None:
        _add_guesses(sums.half_j, group_half_j, divided, untimed, groups)
    _add_whole(sums.half_j, spans, slots, divided, other_ratio)
    separable = separable and slots.idle_known
    states_context = slots.idle_known and other_ratio <= SEPARABLE_RATIO
    shared_j = sum(totals) + float(divided.idle_j.sum())
    to_share_j = float(dynamic_j.sum() + (slots.idle_j * covered_s / slots.widths_s).sum())
    return RequestEnergies(
        divided=divided,
        half_j=sums.half_j,
        group_half_j=np.minimum(group_half_j, shared_j),
        total_half_j=min(total_half_j, shared_j),
        unassigned_j=float(slots.joules.sum()) - to_share_j,
        measured_j=measured_j,
        idle_j=float(slots.idle_j.sum()),
        idle_half_j=slots.idle_ratio * float(slots.idle_j.sum()),
        prefill=prefill if separable else None,
        decode=decode if separable else None,
        context_token=_context_token(model, other_ratio)
        if CONTEXT in used and states_context
        else None,
        joules_of=model.joules_of,
        other_half_j=other_ratio * sum(totals),
    )


def _context_token(model: EnergyModel, other_ratio: float) -> EnergyPart | None:
    """Return the energy of a token of context that a generated token attends to; None if it is not
    significant.
    """
    joules = model.fits[:, [CONTEXT]]
    best = float(joules[0, 0])
    random_j = NORMAL_95 * math.sqrt(float(variances(joules, model.covariance, model.steps)[0]))
    part = EnergyPart(best, random_j + other_ratio * best)
    return part if part.joules > 0.0 and part.half_j <= part.joules else None


def _add_guesses(
    half_j: FloatArray,
    group_half_j: FloatArray,
    divided: DividedEnergy,
    untimed: Mask,
    groups: npt.NDArray[np.int32],
) -> None:
    """Add the errors by guesses of first tokens to the half-widths of requests and of groups, in
    chunks.
    """
    whole_j, guessed_j = np.zeros((2, len(group_half_j)))
    chunks = [slice(start, start + _CHUNK) for start in range(0, len(half_j), _CHUNK)]
    for chunk in chunks:
        dynamic_j = divided.prefill_j[chunk] + divided.decode_j[chunk]
        whole_j += amounts_at(groups[chunk], dynamic_j, len(group_half_j))
        guessed_j += amounts_at(groups[chunk], dynamic_j * untimed[chunk], len(group_half_j))
    total_j, untimed_j = float(whole_j.sum()), float(guessed_j.sum())
    part = untimed_j / total_j if total_j else 0.0
    for chunk in chunks:
        dynamic_j = divided.prefill_j[chunk] + divided.decode_j[chunk]
        guess = guess_j2(dynamic_j, np.maximum(untimed[chunk], part))
        half_j[chunk] = np.hypot(half_j[chunk], NORMAL_95 * np.sqrt(guess))
    parts = np.maximum(quotient(guessed_j, whole_j), part)
    group_j2 = guess_j2(
        np.minimum(whole_j, total_j - whole_j), parts
    )  # of the group and of all others
    group_half_j[:] = np.hypot(group_half_j, NORMAL_95 * np.sqrt(group_j2))


def _add_whole(
    half_j: FloatArray,
    spans: RequestSpans,
    slots: EnergySlots,
    divided: DividedEnergy,
    other_ratio: float,
) -> None:
    """Add the errors of the idle power and of other work to the half-widths, up to the energy of a
    request's slots.
    """
    for start in range(0, len(half_j), _CHUNK):
        part = slice(start, start + _CHUNK)
        dynamic_j = divided.prefill_j[part] + divided.decode_j[part]
        whole_j = whole_half_widths_j(
            half_j[part], dynamic_j, divided.idle_j[part], np.bool_(slots.idle_known), other_ratio
        )
        half_j[part] = np.minimum(
            whole_j, slots.within_j(spans.arrived_s[part], spans.ended_s[part])
        )


def _terms(spans: RequestSpans, slots: EnergySlots) -> tuple[FloatArray, Mask, FloatArray]:
    """Return the terms (K, 4) of all slots, the mask of those with requests, and the seconds with
    requests (K,).
    """
    terms, busy, covered_s = [], [], []
    for block in load_blocks(spans, slots):
        terms.append(block.terms)
        busy.append(block.busy)
        covered_s.append(block.covered_s)
    return np.concatenate(terms), np.concatenate(busy), np.concatenate(covered_s)
