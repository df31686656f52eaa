from functools import partial

import pytest

from tests.analyzer.report.untagged import cases
from tests.analyzer.report.untagged import foreign_exporters as foreign
from tests.analyzer.report.untagged import llm_services as services
from tests.analyzer.report.untagged.range_reports import report_at


@pytest.fixture(scope="package")
def lines():
    return [*cases.lines(), *services.lines()]


@pytest.fixture(scope="package")
def prometheus(lines, tmp_path_factory):
    with foreign.prometheus_with(tmp_path_factory.mktemp("prometheus"), lines) as address:
        yield address


@pytest.fixture(scope="package")
def victoria_metrics(lines, tmp_path_factory):
    with foreign.victoria_metrics_with(tmp_path_factory.mktemp("victoria"), lines) as address:
        yield address


@pytest.fixture
def report_of(prometheus):
    return partial(report_at, prometheus)
