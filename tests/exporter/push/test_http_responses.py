"""Interpretation of a push server's responses."""

import pytest

from wattline_exporter.push.http import classify_response


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "words"),
    [
        (204, {}, "", "accepted", ""),
        (
            200,
            {"Content-Type": "text/html"},
            "<html>log in",
            "retry",
            "check the path of --push.url",
        ),
        (302, {}, "", "retry", "address of the redirect"),
        (400, {}, "out of order sample", "refused", "out_of_order_time_window"),
        (400, {}, "label limit exceeded", "refused", "see the server's log"),
        (
            400,
            {},
            "out of bounds: timestamp is too far in the future",
            "retry",
            "check the clocks of this host",
        ),
        (400, {}, "snappy: corrupt input", "retry", "Content-Encoding"),
        (400, {}, "cannot read gzipped lines: unexpected EOF", "retry", "Content-Encoding"),
        (400, {}, "out of bounds", "refused", "out_of_order_time_window"),
        (
            409,
            {},
            "store locally for endpoint 127.0.0.1:10901: conflict",
            "refused",
            "out_of_order_time_window",
        ),
        (
            400,
            {},
            "Client sent an HTTP request to an HTTPS server.",
            "retry",
            "https:// in --push.url",
        ),
        (
            400,
            {},
            "unsupported path requested: /api/v1/wriet",
            "retry",
            "check the path of --push.url",
        ),
        (422, {}, "invalid tenant id", "retry", "check the path of --push.url"),
        (401, {}, "", "retry", "--push.token-file"),
        (404, {}, "404 page not found", "retry", "--web.enable-remote-write-receiver"),
        (413, {}, "", "too_large", "maximum body size"),
        (429, {"Retry-After": "7"}, "", "retry", "limits the rate"),
        (500, {"Retry-After": "7"}, "disk\nfull", "retry", "HTTP 500 (disk full)"),
    ],
)
def test_push_response_is_classified(status, headers, body, kind, words):
    outcome = classify_response(status, headers, body)

    assert outcome.kind == kind
    assert words in outcome.text
    assert outcome.retry_after_s == (7.0 if status == 429 else None)


def test_push_retry_after_date_is_at_most_an_hour():
    assert (
        classify_response(503, {"Retry-After": "Fri, 01 Jan 2199 00:00:00 GMT"}, "").retry_after_s
        == 3_600.0
    )
    assert (
        classify_response(503, {"Retry-After": "Fri, 01 Jan 1999 00:00:00 GMT"}, "").retry_after_s
        == 0.0
    )
    assert classify_response(503, {"Retry-After": "soon"}, "").retry_after_s is None
