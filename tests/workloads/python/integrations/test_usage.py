"""Tokens that answers of servers state."""

import json

import pytest

from wattline.integrations.usage import AnswerUsage, EventStream


def tokens(usage):
    return usage.prompt_tokens, usage.cached_tokens, usage.generated_tokens


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"prompt_tokens": 11, "completion_tokens": 3}, (11, None, 3)),
        ({"prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}, (11, 8, 3)),
        ({"input_tokens": 11, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 8}}, (11, 8, 3)),
        ({"input_tokens": 11, "output_tokens": 3}, (11, None, 3)),
        ({"input_tokens": 3, "cache_read_input_tokens": 8, "output_tokens": 3}, (11, 8, 3)),
        ({"input_tokens": 1, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 2}, (11, 8, None)),
        ({"input_tokens": 11, "cache_read_input_tokens": None, "output_tokens": 3}, (11, None, 3)),
        ({"prompt_tokens": 11, "completion_tokens": 3, "cache_read_input_tokens": 8}, (11, None, 3)),
    ],
)
def test_usage_of_answer_has_all_prompt_tokens(stated, expected):
    usage = AnswerUsage()
    usage.read({"id": "a", "usage": stated})

    assert tokens(usage) == expected


def test_usage_of_anthropic_stream_is_that_of_its_last_event():
    """The first event has the whole prompt, since the server knows the cached part later, as vLLM does."""
    documents = [
        {"type": "message_start", "message": {"id": "msg-1", "usage": {"input_tokens": 11, "output_tokens": 0}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "usage": {"input_tokens": 3, "cache_read_input_tokens": 8, "output_tokens": 5}},
    ]
    usage = AnswerUsage()
    EventStream(usage).feed("".join(f"event: x\ndata: {json.dumps(each)}\n\n" for each in documents).encode())

    assert (usage.request_id, usage.has_text, tokens(usage)) == ("msg-1", True, (11, 8, 5))
