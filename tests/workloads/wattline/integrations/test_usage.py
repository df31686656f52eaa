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
        (
            {
                "prompt_tokens": 11,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 8},
            },
            (11, 8, 3),
        ),
        (
            {"input_tokens": 11, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 8}},
            (11, 8, 3),
        ),
        ({"input_tokens": 11, "output_tokens": 3}, (11, None, 3)),
        ({"input_tokens": 3, "cache_read_input_tokens": 8, "output_tokens": 3}, (11, 8, 3)),
        (
            {"input_tokens": 1, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 2},
            (11, 8, None),
        ),
        ({"input_tokens": 11, "cache_read_input_tokens": None, "output_tokens": 3}, (11, None, 3)),
        (
            {"prompt_tokens": 11, "completion_tokens": 3, "cache_read_input_tokens": 8},
            (11, None, 3),
        ),
        ({"total_tokens": 11}, (11, None, None)),
        ({"prompt_tokens": 11, "total_tokens": 14}, (11, None, None)),
    ],
)
def test_usage_of_answer_has_all_prompt_tokens(stated, expected):
    usage = AnswerUsage()
    usage.read({"id": "a", "usage": stated})

    assert tokens(usage) == expected


def test_usage_of_anthropic_stream_is_that_of_its_last_event():
    """The first event has the whole prompt, since the server knows the cached part later, as vLLM
    does.
    """
    documents = [
        {
            "type": "message_start",
            "message": {"id": "msg-1", "usage": {"input_tokens": 11, "output_tokens": 0}},
        },
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}},
        {
            "type": "message_delta",
            "usage": {"input_tokens": 3, "cache_read_input_tokens": 8, "output_tokens": 5},
        },
    ]
    usage = AnswerUsage()
    stream = EventStream(usage)
    stream.feed("".join(f"event: x\ndata: {json.dumps(each)}\n\n" for each in documents).encode())
    stream.end()

    assert (usage.request_id, usage.has_text, tokens(usage)) == ("msg-1", True, (11, 8, 5))


SGLANG = {
    "text": "a",
    "meta_info": {"id": "a", "prompt_tokens": 11, "completion_tokens": 3, "cached_tokens": 8},
}
OLLAMA = {"model": "tiny", "response": "", "done": True, "prompt_eval_count": 11, "eval_count": 3}


@pytest.mark.parametrize(
    ("document", "request_id", "expected"),
    [
        (SGLANG, "a", (11, 8, 3)),
        ([SGLANG, SGLANG], "a", (22, 16, 6)),
        ([], None, (None, None, None)),
        ([SGLANG, {"text": "a"}], None, (None, None, None)),
        (OLLAMA, None, (11, None, 3)),
        ({"done": True, "eval_count": 3}, None, (0, None, 3)),
        ({"count": 11, "tokens": [1, 2]}, None, (None, None, None)),
    ],
)
def test_usage_of_other_apis_is_read(document, request_id, expected):
    usage = AnswerUsage()
    usage.read(document)

    assert (usage.request_id, tokens(usage)) == (request_id, expected)


def test_cumulative_stream_of_sglang_has_its_last_counts():
    counts = [{"id": "a", "prompt_tokens": 11, "completion_tokens": made} for made in range(4)]
    documents = [{"text": "a" * each["completion_tokens"], "meta_info": each} for each in counts]
    usage = AnswerUsage()
    stream = EventStream(usage, is_known=False)
    stream.feed(b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in documents[:2]))
    begun = usage.has_text
    stream.feed(b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in documents[2:]))
    stream.feed(b"data: [DONE]\n\n")
    stream.end()

    assert (begun, usage.request_id, tokens(usage)) == (True, "a", (11, None, 3))


def test_lines_of_ollama_have_their_first_text_and_their_last_counts():
    lines = [
        {"message": {"content": ""}, "done": False},
        {"message": {"content": "a"}, "done": False},
        OLLAMA,
    ]
    usage = AnswerUsage()
    stream = EventStream(usage, is_lines=True)
    stream.feed(json.dumps(lines[0]).encode() + b"\n")
    assert not usage.has_text
    stream.feed(
        b"\n".join(json.dumps(each).encode() for each in lines[1:])
    )  # the last line has no end
    stream.end()

    assert (usage.has_text, tokens(usage)) == (True, (11, None, 3))


def test_events_without_usage_do_not_replace_it():
    """The last event of some servers has `"usage": null`."""
    text = {"choices": [{"delta": {"content": "a"}}], "usage": None}
    documents = [
        text,
        {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3}},
        text,
    ]
    usage = AnswerUsage()
    stream = EventStream(usage)
    stream.feed("".join(f"data: {json.dumps(each)}\n\n" for each in documents).encode())
    stream.end()

    assert tokens(usage) == (11, None, 3)
