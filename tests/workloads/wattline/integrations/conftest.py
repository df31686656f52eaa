import pytest

from tests.daemon import daemon


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Exporter with one simulated GPU at its idle power."""
    with daemon(tmp_path_factory.mktemp("node"), "--simulate", "1xH200", "--no-history") as started:
        yield started


@pytest.fixture
def job(node, monkeypatch):
    """Environment of a job that is measured on all GPUs of the node."""
    for name in ("WATTLINE_RUN_ID", "WATTLINE_METRICS", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WATTLINE_EXPORTER", node.url)
    return node
