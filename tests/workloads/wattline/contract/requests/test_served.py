from __future__ import annotations

from dataclasses import replace

import pytest

from wattline.contract.requests.served import MAX_TOKENS, ServedRequest, request_error

REQUEST = ServedRequest(
    "chatcmpl-1",
    1.8e9,
    1.8e9 + 2,
    1_000,
    50,
    1.8e9 + 0.1,
    200,
    {"user": "Zoë", "model": "llama"},
    "decode",
)


def test_a_request_within_all_limits_has_no_error():
    assert request_error(REQUEST) is None
    assert request_error(ServedRequest("x" * 128, 0.0, 0.0, 0, MAX_TOKENS)) is None


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"request_id": ""}, "id: expected 1 to 128"),
        ({"request_id": "x" * 129}, "id: expected 1 to 128"),
        ({"request_id": "a\x1b[2J"}, "id: expected 1 to 128"),
        ({"started_at": float("nan")}, "started_at: expected Unix seconds, not nan"),
        (
            {"ended_at": 1.8e12},
            "ended_at: expected Unix seconds, not 1.8e+12; divide milliseconds by 1,000",
        ),
        ({"first_token_at": -1.0}, "first_token_at: expected Unix seconds"),
        ({"prompt_tokens": -1}, "prompt_tokens: expected 0 to 100,000,000, not -1"),
        ({"generated_tokens": MAX_TOKENS + 1}, "generated_tokens: expected"),
        ({"cached_tokens": 1_001}, "cached_tokens: expected at most prompt_tokens"),
        ({"role": "both"}, "role: expected prefill or decode"),
        ({"labels": {f"l{k}": "" for k in range(17)}}, "labels: 17 labels, at most 16"),
        ({"labels": {"1st": "x"}}, "labels: expected names"),
        ({"labels": {"l" * 65: "x"}}, "labels: expected names"),
        ({"labels": {"user": "x" * 129}}, "labels.user: expected at most 128"),
        ({"labels": {"user": "\u202e"}}, "labels.user: expected at most 128"),
    ],
)
def test_the_error_names_the_field(change, error):
    assert request_error(replace(REQUEST, **change)).startswith(error)
