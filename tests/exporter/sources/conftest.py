from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.exporter.sources.nvml_readers import Node, ReaderProcess


@pytest.fixture
def open_folder():
    """A folder into which everybody may look; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory(prefix="sysfs-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


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
    """A reader of a node's GPUs, by each of the two ways."""
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
