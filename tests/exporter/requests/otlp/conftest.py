"""Receiver of traces behind a real HTTP server."""

import pytest

from tests.exporter.requests.otlp.receiver_node import Node
from tests.exporter.requests.otlp.server import serve


@pytest.fixture
def node():
    return Node()


@pytest.fixture
def url(node):
    with serve(node.receiver) as address:
        yield address
