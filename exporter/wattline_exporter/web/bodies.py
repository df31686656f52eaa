"""Request bodies of the run API, with their limits."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from wattline.contract.api import (
    DEFAULT_LEASE_S,
    LABEL_NAME_PATTERN,
    MAX_AMOUNT,
    MAX_LABEL_NAME,
    MAX_LABEL_VALUE,
    MAX_LABELS,
    MAX_LEASE_S,
    MAX_PROCESSES,
    MAX_RESULTS,
    MAX_TEXT,
    MAX_UNITS,
    PATTERN_TEXTS,
    RUN_ID_PATTERN,
    TEXT_PATTERN,
    UNIT_PATTERN,
    Outcome,
)
from wattline.contract.requests.served import MAX_REQUESTS_A_CALL
from wattline_exporter.requests.views import (
    RequestId,
    RequestLabels,
    RequestRole,
    RequestTime,
    RequestTokens,
    StoredRequest,
)
from wattline_exporter.runs.admission import RunEnd, RunProcesses, RunStart

RunId = Annotated[str, StringConstraints(pattern=RUN_ID_PATTERN)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT, pattern=TEXT_PATTERN)]
CgroupName = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=TEXT_PATTERN)]
LabelName = Annotated[str, StringConstraints(pattern=LABEL_NAME_PATTERN, max_length=MAX_LABEL_NAME)]
LabelValue = Annotated[str, StringConstraints(max_length=MAX_LABEL_VALUE, pattern=TEXT_PATTERN)]
Unit = Annotated[str, StringConstraints(pattern=UNIT_PATTERN)]
Amount = Annotated[float, Field(ge=0, le=MAX_AMOUNT, allow_inf_nan=False)]
Pid = Annotated[int, Field(ge=1)]


def error_reason(error_type: str, message: str, context: dict[str, Any]) -> str:
    """Return the reason of a validation error, with words instead of a pattern."""
    if error_type != "string_pattern_mismatch":
        return message
    return PATTERN_TEXTS.get(context.get("pattern", ""), message)


class Body(BaseModel):
    """Request body. Unknown fields, and strings in place of numbers, are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


class BeginRequest(Body):
    """Start of a run, with `gpus` by UUID or index.

    Without `gpus`, the run has all GPUs of the node; with an empty list, those on which its
    processes run. `cgroup` is a path within the hierarchy, or `slurm:JOB[.STEP]`, `container:ID` or
    `pod:UID`; `pid_namespace` is as in `ProcessesRequest`.
    """

    workload: Text
    labels: Annotated[dict[LabelName, LabelValue], Field(max_length=MAX_LABELS)] = {}
    gpus: Annotated[list[Text], Field(max_length=1024)] | None = None
    pids: Annotated[list[Pid], Field(max_length=MAX_PROCESSES)] = []
    pid_namespace: Annotated[int, Field(ge=0)] | None = None
    cgroup: CgroupName | None = None
    run_id: RunId | None = None
    lease_seconds: Annotated[float, Field(gt=0, le=MAX_LEASE_S)] = DEFAULT_LEASE_S

    @property
    def start(self) -> RunStart:
        return RunStart(**dict(self))


class ProcessesRequest(Body):
    """Processes of a run. `pid_namespace` is the inode of the client's `/proc/self/ns/pid`.

    In another PID namespace than the exporter's, the same number denotes another process.
    """

    pids: Annotated[list[Pid], Field(max_length=MAX_PROCESSES)] = []
    pid_namespace: Annotated[int, Field(ge=0)] | None = None
    cgroup: CgroupName | None = None

    @property
    def processes(self) -> RunProcesses:
        return RunProcesses(**dict(self))


class WorkRequest(BaseModel):
    """Work of a contributor: one field per unit, with its total so far, which never falls."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[Unit, Amount] = Field(init=False)
    contributor: Annotated[str, StringConstraints(max_length=MAX_TEXT, pattern=TEXT_PATTERN)] = ""

    @property
    def amounts(self) -> dict[str, float]:
        return dict(self.__pydantic_extra__)


class PhaseRequest(Body):
    name: Text


class EndRequest(Body):
    """End of a run. `work` holds the totals of the contributor that ends it (""), as in
    `WorkRequest`.

    `ended_at` is the Unix time of the end, for a client that reports it late; without it the run
    ends now.
    """

    outcome: Outcome = "ok"
    ended_at: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    work: Annotated[dict[Unit, Amount], Field(max_length=MAX_UNITS)] = {}
    results: Annotated[
        dict[Unit, Annotated[float, Field(allow_inf_nan=False)]], Field(max_length=MAX_RESULTS)
    ] = {}

    @property
    def end(self) -> RunEnd:
        return RunEnd(**dict(self))


_Ids = Annotated[list[RequestId], Field(max_length=MAX_REQUESTS_A_CALL)]
_Times = Annotated[list[RequestTime], Field(max_length=MAX_REQUESTS_A_CALL)]
_Counts = Annotated[list[RequestTokens], Field(max_length=MAX_REQUESTS_A_CALL)]
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
    first_token_at: Annotated[list[RequestTime | None], _MAYBE]
    cached_tokens: Annotated[list[RequestTokens], _MAYBE]
    labels: Annotated[list[RequestLabels], _MAYBE]
    label_set: Annotated[list[Annotated[int, Field(ge=0)]], _MAYBE]
    role: Annotated[list[RequestRole | None], _MAYBE]


class RequestReport(Body):
    """Requests of a server that ended since its last report."""

    requests: Annotated[list[StoredRequest], Field(max_length=MAX_REQUESTS_A_CALL)] | RequestArrays
