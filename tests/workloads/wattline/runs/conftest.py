import pytest

from tests.fakes.run_api import RunApi, run_api_server


@pytest.fixture
def api(monkeypatch):
    """Run API in memory, which `wattline` in this process uses."""
    served = RunApi(("GPU-0", "GPU-1"))
    with run_api_server(served) as address:
        monkeypatch.setenv("WATTLINE_EXPORTER", address)
        yield served
