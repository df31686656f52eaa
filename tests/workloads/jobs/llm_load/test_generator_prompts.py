import argparse
import itertools
import json

import pytest

from wattline_workloads.jobs.llm_load import generator
from wattline_workloads.jobs.llm_load.generator import Prompt, TokenRange


def first(iterator, count):
    return list(itertools.islice(iterator, count))


FIVE = TokenRange(5, 5)


def test_generate_requests_lengths_are_in_range():
    requests = first(
        generator.generate_requests(None, TokenRange(3, 6), TokenRange(10, 12), seed=0), 200
    )

    assert {len(request.prompt.text.split()) for request in requests} == {3, 4, 5, 6}
    assert {request.max_tokens for request in requests} == {10, 11, 12}
    assert len({request.prompt.text for request in requests}) > 190


@pytest.mark.parametrize(
    ("text", "least", "most"), [("128", 128, 128), ("64:256", 64, 256), ("7:7", 7, 7)]
)
def test_parse_token_range_accepts_number_or_range(text, least, most):
    assert generator.parse_token_range(text) == TokenRange(least, most)
    assert str(generator.parse_token_range(text)) == text.removesuffix(":7")


@pytest.mark.parametrize("text", ["", "0", "5:3", ":", "1:", "many", "1:2:3", "-4", "1.5"])
def test_parse_token_range_invalid_text_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError, match="64:256"):
        generator.parse_token_range(text)


def test_read_prompts_text_file_repeats_its_lines(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text('one\n\n  two \n{"prompt": "three"}\n')
    requests = first(
        generator.generate_requests(generator.read_prompts(str(path)), FIVE, FIVE, seed=0), 4
    )

    assert [request.prompt.text for request in requests] == [
        "one",
        "  two ",
        '{"prompt": "three"}',
        "one",
    ]


def test_read_prompts_jsonl_file_sets_messages_and_lengths(tmp_path):
    path = tmp_path / "prompts.jsonl"
    messages = [{"role": "user", "content": "hi"}]
    path.write_text(
        f'"one"\n{{"prompt": "two", "max_tokens": 9}}\n{json.dumps({"messages": messages})}\n'
    )
    prompt_file = generator.read_prompts(str(path))
    requests = first(generator.generate_requests(prompt_file, FIVE, FIVE, seed=0), 3)

    assert [request.prompt for request in requests] == [
        Prompt("one"),
        Prompt("two", None, 9),
        Prompt(None, messages),
    ]
    assert [request.max_tokens for request in requests] == [5, 9, 5]
    assert str(prompt_file) == str(path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("plain", "invalid JSON"),
        ("[1]", "neither a string nor an object"),
        ("{}", "either prompt or messages"),
        ('{"prompt": "a", "messages": []}', "either prompt or messages"),
        ('{"prompt": 3}', "prompt is not a string"),
        ('{"messages": []}', "messages is not a list"),
        ('{"messages": [{"content": "a"}]}', "messages is not a list"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens"),
        ('{"prompt": "a", "temperature": 0}', "unknown field 'temperature'"),
    ],
)
def test_read_prompts_invalid_line_is_named(tmp_path, line, complaint):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"good"\n{line}\n')

    with pytest.raises(argparse.ArgumentTypeError, match=rf"prompts\.jsonl, line 2: .*{complaint}"):
        generator.read_prompts(str(path))


def test_read_prompts_missing_or_empty_file_is_rejected(tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")

    with pytest.raises(argparse.ArgumentTypeError, match="contains no prompt"):
        generator.read_prompts(str(tmp_path / "empty.txt"))
    with pytest.raises(argparse.ArgumentTypeError, match="No such file"):
        generator.read_prompts(str(tmp_path / "gone.txt"))
