"""Requests in their stored form."""

from __future__ import annotations

from wattline.contract.requests.stored import pack_requests, unpack_requests
from wattline_exporter.requests.division.columns import RequestColumns


def packed(requests):
    columns = RequestColumns.of(requests)
    return pack_requests(columns.ids, *columns.packed())


def requests_of(columns):
    """Return the requests of columns."""
    return unpack_requests(pack_requests(columns.ids, *columns.packed()))
