"""Client of a server of samples, closed after each test."""

import pytest

from wattline_analyzer.core.sources.base import read_access
from wattline_analyzer.core.sources.prometheus import PrometheusSource


@pytest.fixture
def client():
    opened = []

    def connect(address, *, timeout_s=5.0, **options):
        let_in = read_access(
            options.get("basic_auth"),
            options.get("bearer_token_file"),
            options.get("headers", ()),
            None,
        )
        opened.append(PrometheusSource(address, let_in, timeout_s))
        return opened[-1]

    yield connect
    for source in opened:
        source.close()
