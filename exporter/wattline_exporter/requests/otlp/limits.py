"""Checks of the requests in spans: limits of all at once, and the reason for those that fail."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wattline.contract.api import TEXT_PATTERN
from wattline.contract.requests.served import MAX_TIME_S, MAX_TOKENS, ServedRequest, request_error

if TYPE_CHECKING:  # numpy is imported with the first request
    from wattline_exporter.requests.division.arrays import Mask
    from wattline_exporter.requests.division.columns import RequestColumns

_TEXT = re.compile(TEXT_PATTERN)


def request_errors(requests: RequestColumns, chosen: Mask) -> Iterator[tuple[int, str]]:
    """Yield the positions of chosen requests with a field that is not within its limits, and the
    reasons.

    Labels and the length of ids are within their limits: `SpanReader` cuts them.
    """
    import numpy as np

    first = requests.first_token_at
    wrong = (requests.cached_tokens > requests.prompt_tokens) | (first < 0) | (first > MAX_TIME_S)
    for times in (requests.started_at, requests.ended_at):
        wrong |= (times < 0) | (times > MAX_TIME_S)
    for tokens in (requests.prompt_tokens, requests.generated_tokens, requests.cached_tokens):
        wrong |= (tokens < 0) | (tokens > MAX_TOKENS)
    if not (all(requests.ids) and _is_text("".join(requests.ids))):
        wrong[:] = True
    for position in np.flatnonzero(wrong & chosen).tolist():
        if reason := request_error(_served(requests, position)):
            yield position, reason


def _is_text(joined: str) -> bool:
    """Return True for a text without control characters: at once for printable ASCII, which ids
    usually are.
    """
    import numpy as np

    codes = np.frombuffer(joined.encode(), np.uint8)
    is_usual = codes.min(initial=ord(" ")) >= ord(" ") and codes.max(initial=ord(" ")) <= ord("~")
    return bool(is_usual or _TEXT.match(joined))


def _served(requests: RequestColumns, position: int) -> ServedRequest:
    labels = requests.sets[requests.set_numbers[position]]
    first = float(requests.first_token_at[position])
    return ServedRequest(
        requests.ids[position],
        float(requests.started_at[position]),
        float(requests.ended_at[position]),
        int(requests.prompt_tokens[position]),
        int(requests.generated_tokens[position]),
        None if math.isnan(first) else first,
        int(requests.cached_tokens[position]),
        dict(labels.labels),
        labels.role,
    )
