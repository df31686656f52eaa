import uuid

import pytest

from tests.daemon import daemon
from tests.exporter.push.history_client import PushNode, start_servers


@pytest.fixture(scope="module")
def exporter(tmp_path_factory):
    """Yield an exporter on two simulated GPUs at 230 g/kWh, shared by the tests of a file."""
    folder = tmp_path_factory.mktemp("exporter")
    with daemon(
        folder, "--simulate", "2xH200", "--no-collector.rapl", "--carbon.intensity", "230"
    ) as exporter_process:
        yield exporter_process


@pytest.fixture
def start(tmp_path):
    """Return a function that starts exporters in the test's folder: `with start(*options) as
    exporter`.
    """

    def start_exporter(*options, **more):
        return daemon(
            tmp_path,
            "--simulate",
            "2xH200",
            "--no-collector.rapl",
            "--no-collector.host",
            *options,
            **more,
        )

    return start_exporter


@pytest.fixture(scope="session")
def push_servers(tmp_path_factory):
    with start_servers(tmp_path_factory.mktemp("push_servers")) as servers:
        yield servers


@pytest.fixture
def sender(tmp_path):
    """Return a function that opens a history which is pushed to a URL under a unique node name."""
    nodes = []

    def make(url, folder=tmp_path, **options):
        nodes.append(PushNode(folder, url, f"node-{uuid.uuid4().hex[:8]}", **options).open())
        return nodes[-1]

    yield make
    for each in nodes:
        each.history.close()
