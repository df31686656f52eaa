import pytest

from tests.daemon import daemon


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
