"""Decoding of server-sent events and completion chunks."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattline_workloads.jobs.llm_load import stream as chunk
from wattline_workloads.jobs.llm_load.stream import CompletionChunk, TokenUsage


def decode(*pieces: bytes) -> list[str]:
    decoder = chunk.EventStreamDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


def test_event_decoder_empty_line_completes_event():
    decoder = chunk.EventStreamDecoder()

    assert decoder.feed(b"data: one\n") == []
    assert decoder.feed(b"\ndata: two\n\n") == ["one", "two"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_event_decoder_accepts_all_line_ends(end):
    assert decode(end.join([b"data: one", b"", b"data: two", b"", b""])) == ["one", "two"]


def test_event_decoder_ignores_comments_and_other_fields():
    assert decode(b": keep-alive\n\nevent: message\nid: 7\nretry: 10\ndata: one\n\n:\n\n") == [
        "one"
    ]


def test_event_decoder_joins_data_lines():
    assert decode(b'data: {"a":\ndata:  1}\n\n') == ['{"a":\n 1}']


@pytest.mark.parametrize("cut", range(len(b"data: a\r\ndata: b\r\n\r\n")))
def test_event_decoder_split_crlf_is_one_line_end(cut):
    whole = b"data: a\r\ndata: b\r\n\r\n"

    assert decode(whole[:cut], whole[cut:]) == ["a\nb"]


def test_event_decoder_accepts_missing_space_and_bom():
    assert decode(b"\xef\xbb\xbfdata:one\n\n") == ["one"]


def test_event_decoder_error_field_is_data():
    assert decode(b'error: {"message": "no slot"}\n\n') == ['{"message": "no slot"}']


def test_event_decoder_endless_event_is_rejected():
    with pytest.raises(ValueError, match="16 MiB"):
        decode(*[b"x" * (1 << 20)] * 17)


def test_event_decoder_invalid_utf8_is_rejected():
    with pytest.raises(ValueError, match="utf-8"):
        decode(b"data: \xff\n\n")


@given(st.lists(st.text(alphabet="aé€😀 \x0b\x85\u2028:", max_size=8), max_size=5), st.data())
def test_event_decoder_any_chunk_boundaries_give_same_events(texts, data):
    end = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))
    whole = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(whole)))))
    pieces = [
        whole[begin:stop] for begin, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True)
    ]

    assert decode(*pieces) == texts


def delta(**fields):
    return json.dumps(
        {"choices": [{"index": 0, "delta": fields, "finish_reason": None}], "usage": None}
    )


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning", "refusal"])
def test_parse_chunk_text_of_any_field_is_generated(name):
    assert chunk.parse_chunk(delta(**{name: "a"})) == CompletionChunk(generated=True)


def test_parse_chunk_tool_call_and_completion_are_generated():
    assert chunk.parse_chunk(delta(tool_calls=[{"index": 0, "function": {"name": "f"}}])).generated
    assert chunk.parse_chunk('{"choices": [{"index": 0, "text": "a"}]}').generated


@pytest.mark.parametrize(
    "fields", [{}, {"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None}]
)
def test_parse_chunk_delta_without_text_is_not_generated(fields):
    assert chunk.parse_chunk(delta(**fields)) == CompletionChunk()


def test_parse_chunk_usage_alone_or_with_last_choice():
    counts = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
    without_choice = chunk.parse_chunk(json.dumps({"choices": [], "usage": counts}))
    with_choice = chunk.parse_chunk(
        json.dumps({"choices": [{"delta": {}, "finish_reason": "length"}], "usage": counts})
    )

    assert without_choice == CompletionChunk(usage=TokenUsage(7, 5))
    assert with_choice == CompletionChunk(finished=True, usage=TokenUsage(7, 5))


def test_parse_chunk_usage_has_cached_and_reasoning_tokens():
    details = {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
    at_top = {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "prompt_tokens_details": None,
        "reasoning_tokens": 2,
    }

    assert chunk.parse_chunk(json.dumps({"choices": [], "usage": details})).usage == TokenUsage(
        7, 5, 4, 0
    )
    assert chunk.parse_chunk(json.dumps({"choices": [], "usage": at_top})).usage == TokenUsage(
        7, 5, None, 2
    )


@pytest.mark.parametrize(
    "usage", [None, {}, [], {"prompt_tokens": None}, {"completion_tokens": "5"}, "none"]
)
def test_parse_chunk_incomplete_usage_is_none(usage):
    assert chunk.parse_chunk(json.dumps({"choices": [], "usage": usage})).usage is None


@pytest.mark.parametrize(
    "document",
    [
        {"error": {"message": "out of memory", "code": 500}},
        {"error": "out of memory"},
        {"object": "error", "message": "out of memory", "code": 500},
        {"detail": "out of memory"},
        {"code": 500, "message": "out of memory", "type": "server_error"},
    ],
)
def test_parse_chunk_error_formats_of_servers_are_recognized(document):
    assert chunk.parse_chunk(json.dumps(document)).error == "out of memory"


@pytest.mark.parametrize("reason", ["abort", "error", {"type": "abort", "message": "shut down"}])
def test_parse_chunk_abort_reason_is_recognized(reason):
    parsed = chunk.parse_chunk(json.dumps({"choices": [{"delta": {}, "finish_reason": reason}]}))

    assert parsed.abort_reason in {"abort", "error"}


@pytest.mark.parametrize("data", ["", "{", "[1]", "null", '"text"'])
def test_parse_chunk_invalid_data_is_rejected(data):
    with pytest.raises(ValueError):  # noqa: PT011  # message of json or of parse_chunk
        chunk.parse_chunk(data)


@pytest.mark.parametrize(
    "choices", [None, 3, "text", [None], [{"delta": 3}], [{"delta": {"content": 0}}]]
)
def test_parse_chunk_unexpected_choices_are_not_generated(choices):
    assert not chunk.parse_chunk(json.dumps({"choices": choices})).generated
