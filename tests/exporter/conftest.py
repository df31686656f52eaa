import uuid

import pytest

from tests.daemon import daemon
from tests.exporter.push.node import Node, both_servers


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    """An exporter on two simulated GPUs at 230 g/kWh, shared by the tests of a file."""
    folder = tmp_path_factory.mktemp("exporter")
    with daemon(folder, "--simulate", "2xH200", "--no-collector.rapl", "--carbon.intensity", "230") as started:
        yield started


@pytest.fixture
def start(tmp_path):
    """Run exporters on the test's own folder, as `with start(*options) as exporter`."""

    def started(*options, **more):
        return daemon(tmp_path, "--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host", *options, **more)

    return started


@pytest.fixture(scope="session")
def both(tmp_path_factory):
    with both_servers(tmp_path_factory.mktemp("both")) as servers:
        yield servers


@pytest.fixture
def sender(tmp_path):
    """Makes a history that is pushed to an address, under a name of its own."""
    made = []

    def make(url, folder=tmp_path, **given):
        made.append(Node(folder, url, f"node-{uuid.uuid4().hex[:8]}", **given).open())
        return made[-1]

    yield make
    for each in made:
        each.history.close()
