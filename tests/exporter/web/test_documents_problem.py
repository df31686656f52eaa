"""Titles of error responses."""

import pytest

from wattline_exporter.web.documents import status_title


@pytest.mark.parametrize(
    ("status", "title"),
    [
        (400, "Bad Request"),
        (401, "Unauthorized"),
        (408, "Request Timeout"),
        (413, "Content Too Large"),
        (421, "Misdirected Request"),
        (422, "Unprocessable Content"),
        (429, "Too Many Requests"),
        (503, "Service Unavailable"),
    ],
)
def test_problem_title_is_the_reason_phrase_of_rfc_9110(status, title):
    assert status_title(status) == title
