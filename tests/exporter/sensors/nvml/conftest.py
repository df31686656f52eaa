from __future__ import annotations

import pytest

from tests.exporter.sensors.nvml.readers import Node, ReaderProcess


@pytest.fixture
def make_node(tmp_path):
    nodes = []

    def make(model, count=1):
        nodes.append(Node(tmp_path, model, count))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture(params=["SimulatedNvml", "pynvml"])
def read(request):
    """Return a function that starts a reader of a node's GPUs, by SimulatedNvml and by pynvml."""
    started = []

    def start(node):
        if request.param == "SimulatedNvml":
            return node.reader()
        started.append(ReaderProcess(node.simulation.path))
        return started[-1]

    yield start
    for process in started:
        process.child.kill()
        process.child.communicate()
