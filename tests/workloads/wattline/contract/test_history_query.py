"""The one form of query that the local history supports."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattline.contract.history import Matcher, QueryError, RangeQuery, parse_query


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("up[300s]", RangeQuery("up", (), 300.0)),
        ("up[5m]", RangeQuery("up", (), 300.0)),
        (
            'x{a="b",c!="d"}[1h]',
            RangeQuery("x", (Matcher("a", "=", "b"), Matcher("c", "!=", "d")), 3_600.0),
        ),
        ('{__name__=~"a|b:c"}[1.5s]', RangeQuery("", (Matcher("__name__", "=~", "a|b:c"),), 1.5)),
        ('x{a="\\"\\n\\\\"}[1ms]', RangeQuery("x", (Matcher("a", "=", '"\n\\'),), 0.001)),
    ],
)
def test_query_supported_form_is_parsed(text, query):
    assert parse_query(text) == query


@pytest.mark.parametrize(
    ("operator", "value", "label", "accepted"),
    [
        ("=", "cpu", "cpu", True),
        ("=", "cpu", "gpu", False),
        ("=", "", None, True),
        ("!=", "cpu", None, True),
        ("!=", "", None, False),
        ("=~", "gpu|cpu", "cpu", True),
        ("=~", "0|1", "10", False),
        ("=~", "0|", None, True),
        ("=~", "", "", True),
        ("=~", "GPU-f875|GPU-0", "GPU-f875", True),
        ("!~", "gpu|cpu", "cpu", False),
        ("!~", "gpu|cpu", "dram", True),
    ],
)
def test_matcher_compares_the_whole_value(operator, value, label, accepted):
    assert Matcher("a", operator, value).accepts({} if label is None else {"a": label}) == accepted


@pytest.mark.parametrize(
    "text", ["up", "{}[1s]", "[1s]", "rate(up[60s])", "up[60]", 'up{a="b}[1s]', "up[1s"]
)
def test_query_other_form_is_refused(text):
    with pytest.raises(QueryError, match=r"unsupported query|invalid label matcher"):
        parse_query(text)


@pytest.mark.parametrize("operator", ["=~", "!~"])
@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)(b", "[", "a{", "*", "a{2,1}", "(a{1000}){1000}", "a\\\\.b"),
        *("(?=a)", "\\\\1", "[b-a]", "(" * 5_000),
        *("(a+)+b", "(a|a)*b", "(a*)*(a*)*b", "(.*)(.*)(.*)(.*)x", "(a?){20}a{20}b"),
        *(".", ".+", ".*", "^wattline_gpu_.*_total$", "[ab]", "x{3}", "a?"),
    ],
)
def test_query_regular_expression_is_refused(operator, pattern):
    with pytest.raises(QueryError, match="unsupported regular expression"):
        parse_query(f'x{{a{operator}"{pattern}"}}[60s]')


@given(
    st.text(st.characters(codec="utf-8"), max_size=60)
    | st.text('{}[]()=~!"\\,sm0123456789a*+|', max_size=60)
)
@settings(max_examples=1_500, deadline=None)
def test_query_any_text_is_parsed_or_refused(query):
    try:
        parsed = parse_query(query)
    except QueryError:
        return
    assert parsed.window_s >= 0
    assert all(matcher.accepts({}) in (True, False) for matcher in parsed.matchers)
