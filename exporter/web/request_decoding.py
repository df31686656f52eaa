"""Decoding of reported requests: checks in C what JSON schemas can express, and the rest once for each batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any, Literal

from exporter.contract.requests import (
    MAX_LABEL_VALUE,
    MAX_REQUEST_ID,
    MAX_REQUEST_LABELS,
    MAX_REQUESTS_A_CALL,
    MAX_TIME_S,
    MAX_TOKENS,
    ServedRequest,
    request_error,
)
from exporter.model import RunError

_UNUSUAL = re.compile(rb"\\|\x7f|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
"""Bytes without which no text of a valid JSON document has a control character."""


def decode_requests(body: bytes) -> Sequence[ServedRequest]:
    """Return the requests of a call. Raises RunError, which names the field and the index of the request."""
    msgspec, decoder = _decoder()
    try:
        requests: Sequence[ServedRequest] = decoder.decode(body).requests
    except msgspec.ValidationError as error:
        raise RunError(422, _described(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(400, f"the body is not JSON: {error}") from error
    names = {name for each in {tuple(each.labels) for each in requests} for name in each}
    if _UNUSUAL.search(body) or not all(map(_is_label, names)) or any(_is_doubtful(each) for each in requests):
        for index, each in enumerate(requests):
            if reason := request_error(each):
                raise RunError(422, f"requests[{index}].{reason}")
    return requests


def _is_doubtful(request: ServedRequest) -> bool:
    return request.cached_tokens > request.prompt_tokens


def _is_label(name: str) -> bool:
    return name.isidentifier() and name.isascii() and len(name) <= 64


@cache
def _decoder() -> tuple[Any, Any]:
    """Return the library and the decoder, made for the first request: it needs 3 MB."""
    import msgspec
    from msgspec import Meta

    time = Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
    tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
    value = Annotated[str, Meta(max_length=MAX_LABEL_VALUE)]
    labels = Annotated[dict[str, value], Meta(max_length=MAX_REQUEST_LABELS)]
    request = msgspec.defstruct(
        "Request",
        [
            ("request_id", Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID)]),
            ("started_at", time),
            ("ended_at", time),
            ("prompt_tokens", tokens),
            ("generated_tokens", tokens),
            ("first_token_at", time | None, None),
            ("cached_tokens", tokens, 0),
            ("labels", labels, msgspec.field(default_factory=dict)),
            ("role", Literal["prefill", "decode"] | None, None),
        ],
        rename={"request_id": "id"},
        forbid_unknown_fields=True,
    )
    requests = Annotated[list[request], Meta(max_length=MAX_REQUESTS_A_CALL)]  # type: ignore[valid-type]  # made above
    call = msgspec.defstruct("Call", [("requests", requests)], forbid_unknown_fields=True)
    return msgspec, msgspec.json.Decoder(call)


def _described(error: str) -> str:
    """Return `Expected X - at `$.requests[3].id`` as `requests[3].id: expected X`."""
    reason, _, place = error.rpartition(" - at `$")
    if not reason:
        return f"body: {error[:1].lower()}{error[1:]}"
    field = place.rstrip("`").removeprefix(".").replace("[...]", "") or "body"
    return f"{field}: {reason[:1].lower()}{reason[1:].replace('`', '')}"
