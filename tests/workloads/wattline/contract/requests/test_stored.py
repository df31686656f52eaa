from __future__ import annotations

import pytest

from tests.workloads.wattline.contract.packed_requests import packed
from wattline.contract.requests.served import ServedRequest
from wattline.contract.requests.stored import pack_requests, unpack_requests
from wattline_exporter.requests.division.columns import RequestColumns

REQUESTS = [
    ServedRequest(
        "a\tÄ",
        1.8e9,
        1.8e9 + 2.125,
        4_000_000,
        7,
        1.8e9 + 0.5,
        12,
        {"model": "m", "user": "Zoë"},
        "decode",
    ),
    ServedRequest("b", 1.8e9 + 1e-6, 1.8e9 + 1, 0, 0),
    ServedRequest("c", 1.8e9, 1.8e9, 1, 1, labels={"model": "m", "user": "Zoë"}),
]


def test_a_batch_has_the_requests_that_were_packed():
    assert unpack_requests(packed(REQUESTS)) == REQUESTS


def test_labels_as_lists_of_pairs_are_read():
    """Wattline stored them so before it packed objects, in the same schema."""
    columns = RequestColumns.of(REQUESTS[2:])
    _, roles, packed_columns = columns.packed()

    body = pack_requests(columns.ids, [[("model", "m"), ("user", "Zoë")]], roles, packed_columns)

    assert unpack_requests(body) == REQUESTS[2:]


def test_a_damaged_batch_is_an_error():
    body = packed(REQUESTS)

    for damaged in (b"", body[:-9], b"?" + body[1:]):
        with pytest.raises(ValueError, match="damaged"):
            unpack_requests(damaged)
