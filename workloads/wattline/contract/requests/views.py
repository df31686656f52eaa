"""Bodies of the run API about requests of servers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from wattline.contract.requests.served import (
    MAX_LABEL_VALUE,
    MAX_REQUEST_ID,
    MAX_REQUEST_LABELS,
    MAX_REQUESTS_A_CALL,
    MAX_TIME_S,
    MAX_TOKENS,
)
from wattline.contract.run import TEXT_PATTERN, Body, LabelName

_Time = Annotated[float, Field(ge=0, le=MAX_TIME_S)]
_Tokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]
_Value = Annotated[str, Field(max_length=MAX_LABEL_VALUE, pattern=TEXT_PATTERN)]

_Id = Annotated[str, Field(min_length=1, max_length=MAX_REQUEST_ID, pattern=TEXT_PATTERN)]
_Labels = Annotated[dict[LabelName, _Value], Field(max_length=MAX_REQUEST_LABELS)]
_Role = Literal["prefill", "decode"]


class StoredRequest(Body):
    """A request that ended; times in Unix seconds. See `wattline.contract.requests`."""

    id: _Id
    started_at: _Time
    ended_at: _Time
    prompt_tokens: _Tokens
    generated_tokens: _Tokens
    first_token_at: _Time | None = None
    cached_tokens: _Tokens = 0
    labels: Annotated[_Labels, Field(default_factory=dict)]
    role: _Role | None = None


_Ids = Annotated[list[_Id], Field(max_length=MAX_REQUESTS_A_CALL)]
_Times = Annotated[list[_Time], Field(max_length=MAX_REQUESTS_A_CALL)]
_Counts = Annotated[list[_Tokens], Field(max_length=MAX_REQUESTS_A_CALL)]
_MAYBE: Any = Field(max_length=MAX_REQUESTS_A_CALL, default_factory=list)


class RequestArrays(Body):
    """Requests as an array for each field, with a value for each request.

    `labels` are distinct sets of labels; `label_set` has the position of each request's set, 0
    without it.
    """

    id: _Ids
    started_at: _Times
    ended_at: _Times
    prompt_tokens: _Counts
    generated_tokens: _Counts
    first_token_at: Annotated[list[_Time | None], _MAYBE]
    cached_tokens: Annotated[list[_Tokens], _MAYBE]
    labels: Annotated[list[_Labels], _MAYBE]
    label_set: Annotated[list[Annotated[int, Field(ge=0)]], _MAYBE]
    role: Annotated[list[_Role | None], _MAYBE]


class RequestReport(Body):
    """Requests of a server that ended since its last report."""

    requests: Annotated[list[StoredRequest], Field(max_length=MAX_REQUESTS_A_CALL)] | RequestArrays


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
