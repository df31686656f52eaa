"""Decoding of reported requests without an exporter."""

import pytest

from wattline_exporter.sensors.readings import RunError
from wattline_exporter.web.request_bodies import decode_requests

_DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            b'{"requests":[{"id":"a","labels":' + _DEEP + b"}]}",
            "requests[0].labels: expected str, got object",
        ),
        (
            b'{"requests":{"id":["a"],"labels":[' + _DEEP + b"]}}",
            "requests.labels[0]: expected str, got object",
        ),
    ],
)
def test_labels_with_many_levels_are_refused(body, reason):
    with pytest.raises(RunError) as refused:
        decode_requests(body)

    assert (refused.value.status, str(refused.value)) == (422, reason)
