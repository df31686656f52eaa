"""Decoding of reported requests: checks in C what JSON schemas can express, and the rest once for
each batch.

A call has an array with an object for each request, or an object with an array for each field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

from wattline.contract.api import MAX_LABEL_NAME, MAX_LABEL_VALUE
from wattline.contract.requests.served import (
    MAX_REQUEST_ID,
    MAX_REQUEST_LABELS,
    MAX_REQUESTS_A_CALL,
    MAX_TIME_S,
    MAX_TOKENS,
    ROLES,
    ServedRequest,
    request_error,
)
from wattline_exporter.sensors.readings import RunError

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.columns import LabelSet, RequestColumns

SMALLER_BATCHES = "send smaller batches"
"""Remedy for calls with too much."""
MAX_LABEL_SETS = 4_096
"""Latest sets of labels that are kept, so that each one is decoded once."""
_UNUSUAL = re.compile(rb"\\|\x7f|\xe2\x80[\xaa-\xae]|\xe2\x81[\xa6-\xa9]")
"""Bytes without which no text of a valid JSON document has a control character."""

_OF_ARRAY = re.compile(r"^requests\.(?!labels)(\w+)(\[\d+\])")
"""Path of a value in an array of a field, which messages name as that of a request."""


def decode_requests(body: bytes) -> RequestColumns:
    """Return the requests of a call. Raises RunError, which names the field and the index of the
    request.
    """
    from wattline_exporter.requests.division.columns import RequestColumns

    return _decode_usual(body) or RequestColumns.of(_decode_any(body))


def _decode_usual(body: bytes) -> RequestColumns | None:
    """Return the requests of a call without errors and unusual characters."""
    from wattline_exporter.requests.division.columns import RequestColumns

    if b"\\" in body or b"\x7f" in body or (not body.isascii() and _UNUSUAL.search(body)):
        return None
    msgspec, _, decoder, _ = _decoders()
    try:
        requests = decoder.decode(body).requests
        if not isinstance(requests, list):
            columns = _columns(_Arrays.of(requests))
        else:
            known: dict[tuple[bytes, str | None], int] = {}
            numbers = [
                known.setdefault((bytes(each.labels), each.role), len(known)) for each in requests
            ]
            columns = RequestColumns.of(requests, numbers, [_label_set(*each) for each in known])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, _LabelNameError):
        return None
    return None if (columns.cached_tokens > columns.prompt_tokens).any() else columns


class _Arrays(NamedTuple):
    """Fields of N requests as arrays, and their sets of labels, as JSON or decoded."""

    request_id: list[str]
    started_at: list[float]
    ended_at: list[float]
    prompt_tokens: list[int]
    generated_tokens: list[int]
    first_token_at: list[float | None]
    cached_tokens: list[int]
    role: list[str | None]
    label_set: list[int]
    labels: list[Any]

    @classmethod
    def of(cls, call: Any) -> _Arrays:
        """Return the arrays of a call, with those that it lacks. Raises RunError if they do not
        belong together.
        """
        count = len(call.request_id)
        missing: dict[str, Any] = {
            "first_token_at": None,
            "cached_tokens": 0,
            "role": None,
            "label_set": 0,
        }
        arrays: dict[str, Any] = {name: getattr(call, name) for name in cls._fields}
        for name, value in missing.items():
            arrays[name] = [value] * count if arrays[name] is None else arrays[name]
        for name, each in arrays.items():
            if name != "labels" and len(each) != count:
                raise RunError(
                    422,
                    f"requests.{name}: expected {count} values, as many as of id, not {len(each)}",
                )
        found = cls(**arrays)
        sets = len(found.labels)
        if max(found.label_set, default=-1) >= sets:
            index, number = next(each for each in enumerate(found.label_set) if each[1] >= sets)
            raise RunError(
                422, f"requests[{index}].label_set: expected a number below {sets}, not {number}"
            )
        return found


def _columns(found: _Arrays) -> RequestColumns:
    """Return the columns of arrays with labels in JSON. Raises _LabelNameError and
    msgspec.DecodeError.
    """
    from wattline_exporter.requests.division.columns import RequestColumns

    known: dict[tuple[int, str | None], int] = {
        (number, None): number for number in range(len(found.labels))
    }
    numbers = found.label_set
    if any(found.role) or len(set(numbers)) < len(known):
        known = {}
        numbers = [
            known.setdefault(each, len(known))
            for each in zip(found.label_set, found.role, strict=True)
        ]
    sets = [_label_set(bytes(found.labels[number]), role) for number, role in known]
    values = (
        *(found.started_at, found.first_token_at, found.ended_at),
        *(found.prompt_tokens, found.cached_tokens, found.generated_tokens),
    )
    return RequestColumns.of_values(found.request_id, values, numbers, sets)


class _LabelNameError(Exception):
    """A name of a label that is not allowed."""


@lru_cache(maxsize=MAX_LABEL_SETS)
def _label_set(labels: bytes, role: str | None) -> LabelSet:
    """Return the labels in JSON with a role, the same object for the same text. Raises
    _LabelNameError.
    """
    from wattline_exporter.requests.division.columns import LabelSet

    _, _, _, decoder = _decoders()
    found = LabelSet(decoder.decode(labels), role)
    if not all(map(_is_label, found.labels)):
        raise _LabelNameError
    return found


def _decode_any(body: bytes) -> Sequence[ServedRequest]:
    """Return the requests of a call, each one checked. Raises RunError."""
    msgspec, decoder, _, _ = _decoders()
    try:
        requests = decoder.decode(body).requests
    except msgspec.ValidationError as error:
        raise RunError(422, _described(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(400, f"the body is not JSON: {error}") from error
    if not isinstance(requests, list):
        found = _Arrays.of(requests)
        labels = [found.labels[number] for number in found.label_set]
        requests = [
            ServedRequest(*each) for each in zip(*found[:-3], labels, found.role, strict=True)
        ]
    for index, each in enumerate(requests):
        if reason := request_error(each):
            raise RunError(422, f"requests[{index}].{reason}")
    return cast("Sequence[ServedRequest]", requests)


def _is_label(name: str) -> bool:
    return name.isidentifier() and name.isascii() and len(name) <= MAX_LABEL_NAME


@cache
def _decoders() -> tuple[Any, Any, Any, Any]:
    """Return the library, and decoders of calls, of calls with labels as bytes, and of labels; they
    need 3 MB.
    """
    import msgspec
    from msgspec import Meta

    value = Annotated[str, Meta(max_length=MAX_LABEL_VALUE)]
    labels = Annotated[dict[str, value], Meta(max_length=MAX_REQUEST_LABELS)]

    def decoder(labels_type: Any, no_labels: Any) -> Any:
        time = Annotated[float, Meta(ge=0, le=MAX_TIME_S)]
        tokens = Annotated[int, Meta(ge=0, le=MAX_TOKENS)]
        types: dict[str, Any] = {
            "request_id": Annotated[str, Meta(min_length=1, max_length=MAX_REQUEST_ID)],
            **dict.fromkeys(("started_at", "ended_at"), time),
            **dict.fromkeys(("prompt_tokens", "generated_tokens"), tokens),
        }
        optional = {
            "first_token_at": time | None,
            "cached_tokens": tokens,
            "role": Literal["prefill", "decode"] | None,
        }

        def array(kind: Any) -> Any:
            return Annotated[list[kind], Meta(max_length=MAX_REQUESTS_A_CALL)]

        def struct(name: str, fields: Sequence[Any]) -> Any:
            rename = {"request_id": "id"}
            return msgspec.defstruct(
                name, fields, rename=rename, forbid_unknown_fields=True, gc=False
            )

        defaults = {"first_token_at": None, "cached_tokens": 0, "role": None}
        request = struct(
            "Request",
            [
                *types.items(),
                *((name, kind, defaults[name]) for name, kind in optional.items()),
                ("labels", labels_type, no_labels),
            ],
        )
        arrays = struct(
            "Arrays",
            [
                *((name, array(kind)) for name, kind in types.items()),
                *((name, array(kind), None) for name, kind in optional.items()),
                ("label_set", array(Annotated[int, Meta(ge=0)]), None),
                ("labels", array(labels_type), msgspec.field(default_factory=lambda: [no_labels])),
            ],
        )
        return msgspec.json.Decoder(struct("Call", [("requests", array(request) | arrays)]))

    usual = decoder(msgspec.Raw, msgspec.Raw(b"{}"))
    return msgspec, decoder(labels, {}), usual, msgspec.json.Decoder(labels)


def _described(error: str) -> str:
    """Return `Expected X - at `$.requests[3].id`` as `requests[3].id: expected X`."""
    reason, _, place = error.rpartition(" - at `$")
    if not reason:
        return f"body: {error[:1].lower()}{error[1:]}"
    field = place.rstrip("`").removeprefix(".").replace("[...]", "") or "body"
    field = _OF_ARRAY.sub(r"requests\2.\1", field)
    if reason.startswith("Expected `float` <="):  # only times are limited
        return f"{field}: expected Unix seconds; divide milliseconds by 1,000"
    if reason.startswith("Expected `array` of length <="):  # only the number of requests is limited
        return f"{field}: expected at most {MAX_REQUESTS_A_CALL:,} requests; {SMALLER_BATCHES}"
    reason = re.sub(
        r"^Expected `float( \| null)?`", "Expected Unix seconds", reason
    )  # only times are a float
    allowed = (
        f"; expected {' or '.join(ROLES)}" if reason.startswith("Invalid enum") else ""
    )  # only roles are an enum
    return f"{field}: {reason[:1].lower()}{reason[1:].replace('`', '')}{allowed}"
