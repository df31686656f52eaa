"""Requests that a server answered, as the run API and OTLP traces report them, with their
limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from wattline.contract.api import (
    LABEL_NAME_PATTERN,
    MAX_LABEL_NAME,
    MAX_LABEL_VALUE,
    TEXT_PATTERN,
)

MAX_REQUESTS_A_CALL = 5_000
MAX_REQUEST_ID = 128
MAX_REQUEST_LABELS = 16
MAX_TOKENS = 100_000_000
"""Most tokens of one request."""
MAX_TIME_S = 1e11
"""Latest Unix time; a larger number is a time in milliseconds or nanoseconds."""
CLIENT_RUN_HEADER = "Wattline-Run"
"""Header in which a client names its run to the server."""
CLIENT_RUN_LABEL = "client_run"
"""Label of a request that the server reported: the run of its client."""
SERVER_WORKLOAD = "llm-server"
SERVER_LABEL = "server"
"""Workload and label of a run that a server begins for its own reports."""
ROLES = ("prefill", "decode")
"""Parts of a disaggregated server: one prefills prompts, the other generates tokens."""

_TEXT = re.compile(TEXT_PATTERN)
_LABEL_NAME = re.compile(LABEL_NAME_PATTERN)


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that ended: times in Unix seconds, and tokens as the server counts them.

    `prompt_tokens` are all tokens of the prompt, `cached_tokens` those of them from the prefix
    cache. `role` is the part of a disaggregated server, None for a server that does both.
    """

    request_id: str
    started_at: float
    ended_at: float
    prompt_tokens: int
    generated_tokens: int
    first_token_at: float | None = None
    cached_tokens: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    role: str | None = None


def client_run_mark(run_id: str) -> str:
    """Return the start of the ids of a client's requests, which some servers repeat in their own
    ids.
    """
    return f"wattline~{run_id}~"  # a run's id has no tilde


def client_run_of(request_id: str) -> str | None:
    """Return the client's run of a request, from a server's id that has the client's one."""
    parts = request_id.split("~", 2)
    return parts[1] if len(parts) > 2 and parts[0].endswith("wattline") else None


def request_error(request: ServedRequest) -> str | None:
    """Return the first invalid field as `FIELD: REASON`, None if all are within their limits.

    The order of the times is not checked: it is a question of clocks, and the exporter counts such
    requests.
    """
    if not 1 <= len(request.request_id) <= MAX_REQUEST_ID or not _TEXT.match(request.request_id):
        return f"id: expected 1 to {MAX_REQUEST_ID} characters without control characters"
    times = {
        "started_at": request.started_at,
        "ended_at": request.ended_at,
        "first_token_at": request.first_token_at,
    }
    for name, value in times.items():
        if value is not None and not 0 <= value <= MAX_TIME_S:
            remedy = "; divide milliseconds by 1,000" if value > MAX_TIME_S else ""
            return f"{name}: expected Unix seconds, not {value:g}{remedy}"
    tokens = {
        "prompt_tokens": request.prompt_tokens,
        "generated_tokens": request.generated_tokens,
        "cached_tokens": request.cached_tokens,
    }
    for name, count in tokens.items():
        if not 0 <= count <= MAX_TOKENS:
            return f"{name}: expected 0 to {MAX_TOKENS:,}, not {count:,}"
    if request.cached_tokens > request.prompt_tokens:
        return "cached_tokens: expected at most prompt_tokens"
    if request.role is not None and request.role not in ROLES:
        return f"role: expected {' or '.join(ROLES)}"
    return _labels_error(request.labels)


def _labels_error(labels: dict[str, str]) -> str | None:
    if len(labels) > MAX_REQUEST_LABELS:
        return f"labels: {len(labels)} labels, at most {MAX_REQUEST_LABELS} are allowed"
    for name, value in labels.items():
        if len(name) > MAX_LABEL_NAME or not _LABEL_NAME.match(name):
            return (
                "labels: expected names of letters, digits and '_', the first one no digit, "
                f"not {name[:80]!r}"
            )
        if len(value) > MAX_LABEL_VALUE or not _TEXT.match(value):
            return (
                f"labels.{name}: expected at most {MAX_LABEL_VALUE} characters without control "
                "characters"
            )
    return None
