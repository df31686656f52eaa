"""Requests in their stored form."""

from __future__ import annotations

from exporter.contract.requests.stored import pack_requests, unpack_requests
from exporter.request_energy.columns import RequestColumns


def packed(requests):
    columns = RequestColumns.of(requests)
    return pack_requests(columns.ids, *columns.packed())


def requests_of(columns):
    """Return the requests of columns."""
    return unpack_requests(pack_requests(columns.ids, *columns.packed()))
