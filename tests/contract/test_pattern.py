"""Label matchers' regular expressions: what they accept is what `re` accepts, and no pattern takes for ever."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.contract.history import QueryError, parse
from exporter.contract.pattern import MOST_CHARACTERS, Pattern, PatternError

PIECES = [
    "a",
    "b",
    "|",
    "(",
    "(?:",
    ")",
    "*",
    "+",
    "?",
    "{2}",
    "{1,2}",
    "{0,}",
    ".",
    "[ab]",
    "[^a]",
    "[a-b]",
    "\\d",
    "0",
]


@given(st.lists(st.sampled_from(PIECES), max_size=10).map("".join), st.lists(st.text("ab0\n", max_size=6), max_size=6))
@settings(max_examples=500, deadline=None)
def test_it_accepts_what_python_accepts(pattern, texts):
    try:
        ours = Pattern(pattern)
        theirs = re.compile(pattern, re.DOTALL)
    except (PatternError, re.error):
        return
    for text in texts:
        assert ours.matches(text) == (theirs.fullmatch(text) is not None), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "text", "whole"),
    [
        ("gpu|cpu", "cpu", True),
        ("0|1", "10", False),
        ("^wattline_gpu_.*_total$", "wattline_gpu_energy_joules_total", True),
        (".+", "", False),
        (".*", "", True),
        ("", "", True),
        (r"a\.b\|c", "a.b|c", True),
        (r"[\w-]+", "GPU-f875", True),
        ("[\\]a]", "]", True),
        ("x{3}", "xxx", True),
        (".", "\n", True),
        ("é世", "é世", True),
    ],
)
def test_a_label_matcher_is_anchored_at_both_ends(pattern, text, whole):
    assert Pattern(pattern).matches(text) == whole


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|a)*b", "(a*)*(a*)*b", "(.*)(.*)(.*)(.*)x", "(a?){20}a{20}b"])
def test_a_pattern_that_explodes_elsewhere_is_quick_here(pattern):
    assert not Pattern(pattern).matches("a" * 2_000)


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)(b", "[", "a{", "*", "a{2,1}", "(a{1000}){1000}", "\\"),
        *("(?=a)", "\\1", "[b-a]", "(" * 5_000, "a" * (MOST_CHARACTERS + 1)),
    ],
)
def test_what_is_not_understood_is_said(pattern):
    with pytest.raises(PatternError):
        Pattern(pattern)


@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.text('{}[]()=~!"\\,sm0123456789a*+', max_size=60))
@settings(max_examples=1_500, deadline=None)
def test_any_query_is_understood_or_refused(query):
    try:
        parsed = parse(query)
    except QueryError:
        return
    assert parsed.window_s >= 0
    assert all(matcher.accepts({}) in (True, False) for matcher in parsed.matchers)
