import pytest

from tests import servers
from tests.grafana import stores

KINDS = ("prometheus", "victoria-metrics")


@pytest.fixture(scope="session")
def addresses(tmp_path_factory):
    """Addresses of the servers with the synthetic series, by kind."""
    for binary in ("promtool", "vmalert"):
        servers.require(binary)
    folder = tmp_path_factory.mktemp("stores")
    for kind in KINDS:
        (folder / kind).mkdir()
    with (
        stores.prometheus(folder / "prometheus") as prometheus,
        stores.victoria_metrics(folder / "victoria-metrics") as victoria_metrics,
    ):
        yield {"prometheus": prometheus, "victoria-metrics": victoria_metrics}


@pytest.fixture(params=KINDS)
def server(request, addresses):
    return addresses[request.param]
