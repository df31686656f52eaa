import pytest

from tests.daemon import daemon


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
