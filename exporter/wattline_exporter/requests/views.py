"""Answers of the run API about the requests of servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field

from wattline.contract.api import LABEL_NAME_PATTERN, MAX_LABEL_NAME, MAX_LABEL_VALUE, TEXT_PATTERN
from wattline.contract.requests.served import (
    MAX_REQUEST_ID,
    MAX_REQUEST_LABELS,
    MAX_TIME_S,
    MAX_TOKENS,
    ServedRequest,
)

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
SAVING_NOTE = "no energy yet: the report of the request is being saved"
ESTIMATE_NOTE = "an estimate: requests that overlap with this one may still be reported"
LOSS_NOTES = (
    "",
    "no energy: the exporter ended before it saved the energy of this request",
    "no energy: none of the run's GPUs has been measured; see exporter check",
    (
        "no energy: the request was reported after the energy of its time was divided, or that is "
        "not known; report requests at their ends"
    ),
    "no energy: the request ended at the time at which it started; report fractions of a second",
    (
        "no energy: the file with the energy of this request is damaged; check the disk that "
        "holds --state.path"
    ),
)
"""Why a request has no energy, by the loss in `wattline_exporter.requests.final`."""
MEAN_NOTE = (
    "the power of {seconds:.0f} s of this request is a mean of a longer time: the exporter did not "
    "run then, or "
    "read its meters late; give it more CPU time"
)
NOT_SAVED_TEXT = (
    "request_id: the energy of request {request_id!r} of run {run_id} could not be saved; check "
    "the disk that holds --state.path"
)
IDLE_NOTE = (
    "idle power unknown: the half-width includes an assumed idle energy; leave the GPUs without "
    "load for ten seconds, once: their idle power is stored"
)
COMBINED_NOTE = "prefill and decode cannot be separated"

RequestId = Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID, pattern=TEXT_PATTERN)]
RequestTime = Annotated[float, Field(ge=0, le=MAX_TIME_S)]
RequestTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
RequestRole: TypeAlias = Literal["prefill", "decode"]
_LabelName = Annotated[str, Field(max_length=MAX_LABEL_NAME, pattern=LABEL_NAME_PATTERN)]
_LabelValue = Annotated[str, Field(max_length=MAX_LABEL_VALUE, pattern=TEXT_PATTERN)]
RequestLabels = Annotated[dict[_LabelName, _LabelValue], Field(max_length=MAX_REQUEST_LABELS)]


class StoredRequest(BaseModel):
    """A request that ended; times in Unix seconds. See `wattline.contract.requests`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: RequestId
    started_at: RequestTime
    ended_at: RequestTime
    prompt_tokens: RequestTokens
    generated_tokens: RequestTokens
    first_token_at: RequestTime | None = None
    cached_tokens: RequestTokens = 0
    labels: Annotated[RequestLabels, Field(default_factory=dict)]
    role: RequestRole | None = None


class RequestReceipt(BaseModel):
    """Numbers of the requests that count, and of those that do not, by reason."""

    accepted: int
    duplicate: int
    late: int
    rejected: int
    reasons: dict[str, int]


class RequestPage(BaseModel):
    """Requests in the order of their reports. `next` is the value of `after` for the next page,
    None at the end.
    """

    requests: list[StoredRequest]
    next: str | None


class PackedRequests(BaseModel):
    """Requests of a run with their energies as they are stored, for the analyzer.

    `batches` are pairs of Base64 texts: packed requests, and their packed energies, None while they
    are not final. `next` is the value of `after` for the next page, None at the end.
    """

    batches: list[tuple[str, str | None]]
    next: int | None


class DividedEnergyView(BaseModel):
    """Energy of a run that was divided among its requests and the rest, for the analyzer.

    `seconds` have begin and end in Unix time, the run's part of the energy of its GPUs, idle
    energy, and 1 if the idle power is known, else 0; the next ones begin after the last begin.
    `totals` are the sums of the divisions, JSON each.
    """

    seconds: list[tuple[float, float, float, float, int]]
    totals: list[str]


class RequestView(BaseModel):
    """Energy of a request in joules, with its share of the idle energy.

    `pending`: no energy is known yet; `provisional`: an estimate; `final`: the value does not
    change. The uncertainty is the half-width of the 95 % confidence interval.
    """

    id: str
    run_id: str
    state: Literal["pending", "provisional", "final"]
    energy_joules: float | None = None
    energy_uncertainty_joules: float | None = None
    idle_energy_joules: float | None = None
    prefill_energy_joules: float | None = None
    decode_energy_joules: float | None = None
    notes: list[str] = []


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
            notes=[LOSS_NOTES[energy.loss]],
        )
    notes = [] if energy.is_separable else [COMBINED_NOTE]
    if not energy.is_idle_known:
        notes.append(IDLE_NOTE)
    if energy.is_shared:
        notes.append(SHARED_NOTE)
    if energy.missing_s > MISSING_S:
        notes.append(
            f"the energy of its first {energy.missing_s:.0f} s is missing: it was not measured, or "
            "divided before the report; the half-width has an estimate, the mean power of the rest"
        )
    if energy.mean_s > MISSING_S:
        notes.append(MEAN_NOTE.format(seconds=energy.mean_s))
    return RequestView(
        id=request_id,
        run_id=run_id,
        state="final",
        energy_joules=energy.total_j,
        energy_uncertainty_joules=energy.half_j,
        idle_energy_joules=energy.idle_j if energy.is_idle_known else None,
        prefill_energy_joules=_of_phase(energy, energy.prefill_j),
        decode_energy_joules=_of_phase(energy, energy.decode_j),
        notes=notes,
    )


def _of_phase(energy: FinalEnergy, joules: float) -> float | None:
    """Return the energy of a phase, None where it cannot be stated, or where the server of a role
    does not have it.
    """
    is_stated = energy.is_separable and not (energy.is_of_role and not joules)
    return joules if is_stated else None


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
        role=cast("RequestRole | None", request.role),
    )
