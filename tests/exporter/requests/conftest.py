"""Node that serves requests."""

from __future__ import annotations

import pytest

from tests.exporter.requests.serving_node import ServingNode


@pytest.fixture
def node(tmp_path):
    node = ServingNode(tmp_path, labels=("user",))
    yield node
    node.close()
