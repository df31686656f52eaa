"""Decoding of reported requests: checks in C what JSON schemas can express, and the rest once for each batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from exporter.contract.requests.served import (
    MAX_LABEL_NAME,
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

if TYPE_CHECKING:  # numpy is imported with the first request
    from exporter.request_energy.columns import LabelSet, RequestColumns

MAX_LABEL_SETS = 4_096
"""Latest sets of labels that are kept, so that each one is decoded once."""
_UNUSUAL = re.compile(rb"\\|\x7f|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
"""Bytes without which no text of a valid JSON document has a control character."""


def decode_requests(body: bytes) -> RequestColumns:
    """Return the requests of a call. Raises RunError, which names the field and the index of the request."""
    from exporter.request_energy.columns import RequestColumns

    return _decode_usual(body) or RequestColumns.of(_decode_any(body))


def _decode_usual(body: bytes) -> RequestColumns | None:
    """Return the requests of a call without errors and unusual characters."""
    from exporter.request_energy.columns import RequestColumns

    if b"\\" in body or b"\x7f" in body or (not body.isascii() and _UNUSUAL.search(body)):
        return None
    msgspec, _, decoder, _ = _decoders()
    try:
        requests = decoder.decode(body).requests
        known: dict[tuple[bytes, str | None], int] = {}
        numbers = [known.setdefault((bytes(each.labels), each.role), len(known)) for each in requests]
        columns = RequestColumns.of(requests, numbers, [_label_set(*each) for each in known])
    except (msgspec.DecodeError, UnicodeDecodeError, _LabelNameError):
        return None
    return None if (columns.cached_tokens > columns.prompt_tokens).any() else columns


class _LabelNameError(Exception):
    """A name of a label that is not allowed."""


@lru_cache(maxsize=MAX_LABEL_SETS)
def _label_set(labels: bytes, role: str | None) -> LabelSet:
    """Return the labels in JSON with a role, the same object for the same text. Raises _LabelNameError."""
    from exporter.request_energy.columns import LabelSet

    _, _, _, decoder = _decoders()
    found = LabelSet(decoder.decode(labels), role)
    if not all(map(_is_label, found.labels)):
        raise _LabelNameError
    return found


def _decode_any(body: bytes) -> Sequence[ServedRequest]:
    """Return the requests of a call, each one checked. Raises RunError."""
    msgspec, decoder, _, _ = _decoders()
    try:
        requests: Sequence[ServedRequest] = decoder.decode(body).requests
    except msgspec.ValidationError as error:
        raise RunError(422, _described(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(400, f"the body is not JSON: {error}") from error
    for index, each in enumerate(requests):
        if reason := request_error(each):
            raise RunError(422, f"requests[{index}].{reason}")
    return requests


def _is_label(name: str) -> bool:
    return name.isidentifier() and name.isascii() and len(name) <= MAX_LABEL_NAME


@cache
def _decoders() -> tuple[Any, Any, Any, Any]:
    """Return the library, and decoders of calls, of calls with labels as bytes, and of labels; they need 3 MB."""
    import msgspec
    from msgspec import Meta

    value = Annotated[str, Meta(max_length=MAX_LABEL_VALUE)]
    labels = Annotated[dict[str, value], Meta(max_length=MAX_REQUEST_LABELS)]

    def decoder(labels_field: tuple[Any, ...]) -> Any:
        time = Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
        tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
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
                ("labels", *labels_field),
                ("role", Literal["prefill", "decode"] | None, None),
            ],
            rename={"request_id": "id"},
            forbid_unknown_fields=True,
            gc=False,
        )
        requests = Annotated[list[request], Meta(max_length=MAX_REQUESTS_A_CALL)]  # type: ignore[valid-type]  # made above
        return msgspec.json.Decoder(msgspec.defstruct("Call", [("requests", requests)], forbid_unknown_fields=True))

    any_call = decoder((labels, msgspec.field(default_factory=dict)))
    return msgspec, any_call, decoder((msgspec.Raw, msgspec.Raw(b"{}"))), msgspec.json.Decoder(labels)


def _described(error: str) -> str:
    """Return `Expected X - at `$.requests[3].id`` as `requests[3].id: expected X`."""
    reason, _, place = error.rpartition(" - at `$")
    if not reason:
        return f"body: {error[:1].lower()}{error[1:]}"
    field = place.rstrip("`").removeprefix(".").replace("[...]", "") or "body"
    return f"{field}: {reason[:1].lower()}{reason[1:].replace('`', '')}"
