"""Requests of the simulated server, as it reports them."""

from tests.analyzer.node import START_S

BEFORE_S, AFTER_S = 4.0, 5.0


def records(served) -> list[dict]:
    spans, offset = served.spans, START_S + BEFORE_S
    return [
        {
            "id": f"r{k}",
            "started_at": offset + spans.arrived_s[k],
            "first_token_at": offset + spans.first_token_s[k],
            "ended_at": offset + spans.ended_s[k],
            "prompt_tokens": int(spans.prompt_tokens[k]),
            "generated_tokens": int(spans.generated_tokens[k]),
            "labels": {"user": "ann" if k % 3 else "bob"},
        }
        for k in range(len(spans))
    ]
