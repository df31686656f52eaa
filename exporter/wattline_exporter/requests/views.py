"""Views of requests for the run API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from wattline.contract.requests.served import ServedRequest
from wattline.contract.requests.views import RequestView, StoredRequest

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.final import FinalEnergy

SHARED_NOTE = (
    "other runs used the GPUs of this run: each run that reports requests has its share of the "
    "energy; the energy of "
    "the others counts for the requests of this run"
)
MISSING_S = 0.5
"""Longest time without energy that is not declared."""
PENDING_NO_GPU_NOTE = (
    "no energy yet: no GPU of the run is known and measured; see exporter check and the run's notes"
)
ESTIMATE_NOTE = "an estimate: requests that overlap with this one may still be reported"
LOSS_NOTES = (
    "",
    (
        "no energy: the exporter ended before it saved the energy of this request; use analyzer "
        "requests "
        "--run-id {run_id}"
    ),
    "no energy: none of the run's GPUs has been measured; see exporter check",
    (
        "no energy: the request was reported after the energy of its time was divided, or more "
        "than 10 s after its end "
        "as the first of the server; use analyzer requests --run-id {run_id}"
    ),
    "no energy: the request ended at the time at which it started; report fractions of a second",
    (
        "no energy: the file with the energy of this request is damaged; use analyzer requests "
        "--run-id {run_id}"
    ),
)
"""Why a request of `run_id` has no energy, by the loss in `wattline_exporter.requests.final`."""
MEAN_NOTE = (
    "the power of {seconds:.0f} s of this request is a mean of a longer time: the exporter did not "
    "run then, or "
    "read its meters late; give it more CPU time"
)
NOT_KEPT_TEXT = (
    "request_id: the energy of request {request_id!r} is not kept: the exporter keeps those of the "
    "latest {count:,} "
    "final requests; use analyzer requests --run-id {run_id}"
)
COMBINED_NOTE = "prefill and decode cannot be separated"


def pending_note(busy_s: float, wait_s: float) -> str:
    """Return the note of a request without an estimate; energy is divided after `wait_s`, and the
    model needs `busy_s`.

    Both are in seconds.
    """
    return (
        f"no energy yet: an estimate needs {busy_s:.3g} s with requests, at least {wait_s:.0f} s "
        "ago; the final energy "
        f"comes about {wait_s:.0f} s after the end of the request"
    )


def estimate_view(
    request_id: str, run_id: str, found: tuple[float, float] | None, pending: str
) -> RequestView:
    """Return the view of a request that is not final: with its likely joules and half-width, or the
    note `pending`.
    """
    if found is None:
        return RequestView(id=request_id, run_id=run_id, state="pending", notes=[pending])
    return RequestView(
        id=request_id,
        run_id=run_id,
        state="provisional",
        energy_joules=found[0],
        energy_uncertainty_joules=found[1],
        notes=[ESTIMATE_NOTE],
    )


def final_view(request_id: str, run_id: str, energy: FinalEnergy) -> RequestView:
    """Return the view of a final request."""
    if energy.loss:
        return RequestView(
            id=request_id,
            run_id=run_id,
            state="final",
            notes=[LOSS_NOTES[energy.loss].format(run_id=run_id)],
        )
    notes = [] if energy.is_separable else [COMBINED_NOTE]
    if energy.is_shared:
        notes.append(SHARED_NOTE)
    if energy.missing_s > MISSING_S:
        notes.append(
            f"the energy of its first {energy.missing_s:.0f} s is missing: it was divided before "
            "the report; the "
            "half-width has an estimate, the mean power of the rest"
        )
    if energy.mean_s > MISSING_S:
        notes.append(MEAN_NOTE.format(seconds=energy.mean_s))
    return RequestView(
        id=request_id,
        run_id=run_id,
        state="final",
        energy_joules=energy.total_j,
        energy_uncertainty_joules=energy.half_j,
        idle_energy_joules=energy.idle_j,
        prefill_energy_joules=energy.prefill_j if energy.is_separable else None,
        decode_energy_joules=energy.decode_j if energy.is_separable else None,
        notes=notes,
    )


def stored_view(request: ServedRequest) -> StoredRequest:
    return StoredRequest.model_construct(
        id=request.request_id,
        started_at=request.started_at,
        first_token_at=request.first_token_at,
        ended_at=request.ended_at,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        generated_tokens=request.generated_tokens,
        labels=request.labels,
        role=cast('Literal["prefill", "decode"] | None', request.role),
    )
