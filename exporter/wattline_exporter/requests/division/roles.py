"""Energy of requests to a disaggregated server, whose devices prefill or decode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from wattline_exporter.requests.division.arrays import FloatArray
from wattline_exporter.requests.division.division import (
    DividedEnergy,
    RequestEnergies,
    divide_all,
)
from wattline_exporter.requests.division.model import Role
from wattline_exporter.requests.division.spans import IDLE_RATIO, EnergySlots, RequestSpans
from wattline_exporter.requests.division.totals import EnergyPart

_LEAST_DECODES = 3
_LEAST_DECODE_S = 1e-3


def divide_role(
    spans: RequestSpans, slots: EnergySlots, role: Role, groups: npt.NDArray[np.int32] | None = None
) -> RequestEnergies:
    """Return the energy of each request to one part of a disaggregated server.

    Raises ValueError as `divide_all` does.
    """
    energies = divide_all(spans, slots, role=role, groups=groups)
    total = _total(energies, slots)
    return replace(
        energies,
        prefill=total if role == "prefill" else None,
        decode=total if role == "decode" else None,
    )


def divide_roles(
    spans: RequestSpans,
    slots: Mapping[Role, EnergySlots],
    groups: npt.NDArray[np.int32] | None = None,
) -> RequestEnergies:
    """Return the energy of each request; `slots` has the energy of the devices of both roles.

    The devices of a role have no other work, so all their energy above idle belongs to their phase.
    The end of prefill is the first token; decode begins when the cache is transferred. Raises
    ValueError as `divide_all` does.
    """
    prefills = replace(spans, ended_s=spans.first_token_s)
    prefill = divide_all(prefills, slots["prefill"], role="prefill", groups=groups)
    begun_s = decode_begins_s(spans)
    decodes = replace(spans, arrived_s=begun_s, first_token_s=begun_s)
    decode = divide_all(decodes, slots["decode"], role="decode", groups=groups)
    divided = DividedEnergy(
        prefill.divided.dynamic_j,
        decode.divided.dynamic_j,
        prefill.divided.idle_j + decode.divided.idle_j,
    )
    return RequestEnergies(
        divided=divided,
        half_j=np.hypot(prefill.half_j, decode.half_j),
        group_half_j=np.hypot(prefill.group_half_j, decode.group_half_j),
        total_half_j=math.hypot(prefill.total_half_j, decode.total_half_j),
        unassigned_j=prefill.unassigned_j + decode.unassigned_j,
        measured_j=prefill.measured_j + decode.measured_j,
        idle_j=prefill.idle_j + decode.idle_j,
        idle_half_j=prefill.idle_half_j + decode.idle_half_j,
        prefill=_total(prefill, slots["prefill"]),
        decode=_total(decode, slots["decode"]),
        context_token=decode.context_token,
        joules_of=prefill.joules_of + decode.joules_of,
        other_half_j=prefill.other_half_j + decode.other_half_j,
        idle_known=prefill.idle_known & decode.idle_known,
    )


def decode_begins_s(spans: RequestSpans) -> FloatArray:
    """Return when the decode of each request began, the same time after each first token.

    That time is the constant part of a least-squares fit to the relative durations of the decodes.
    """
    seconds = np.maximum(spans.ended_s - spans.first_token_s, _LEAST_DECODE_S)
    tokens = np.maximum(spans.generated_tokens - 1.0, 0.0)
    decodes = np.flatnonzero(tokens)
    if len(decodes) < _LEAST_DECODES:
        return spans.first_token_s
    system = np.column_stack([1.0 / seconds, tokens / seconds])[decodes]
    delay_s = max(0.0, float(np.linalg.lstsq(system, np.ones(len(decodes)), rcond=None)[0][0]))
    result: FloatArray = np.minimum(spans.first_token_s + delay_s, spans.ended_s)
    return result


def _total(energies: RequestEnergies, slots: EnergySlots) -> EnergyPart:
    """Return the energy of a role: all above idle, so only samples, idle power and unreported work
    are uncertain.
    """
    joules = float(energies.divided.dynamic_j.sum())
    idle_j = float(energies.divided.idle_j.sum())
    edges_j = (
        0.0 if slots.edge_half_j is None else float(slots.edge_half_j[0] + slots.edge_half_j[-1])
    )
    with_idle_j = math.hypot(edges_j, IDLE_RATIO * idle_j) if slots.idle_known else edges_j + idle_j
    return EnergyPart(joules, with_idle_j + energies.other_half_j)
