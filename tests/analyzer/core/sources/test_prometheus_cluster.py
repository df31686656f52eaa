"""Paths of a VictoriaMetrics cluster in front of a real VictoriaMetrics."""

import json
import urllib.parse
import urllib.request

import pytest

from tests.analyzer.loopback import Reply, http_server
from tests.bench import long_run
from tests.servers import victoria_metrics
from wattline.contract import metrics as m
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.prometheus import PrometheusSource

RUN_S = 600
TENANT = "/select/0/prometheus"


@pytest.fixture(scope="module")
def stored_run(tmp_path_factory):
    """Return the start of a ten-minute run and the address of a VictoriaMetrics that has it."""
    start_s = 1_789_000_000.0
    with victoria_metrics(
        tmp_path_factory.mktemp("vm"), [], flags=["-retentionPeriod=100y"]
    ) as address:
        lines = "".join(long_run.json_lines(long_run.run(start_s, RUN_S))).encode()
        urllib.request.urlopen(
            urllib.request.Request(f"{address}/api/v1/import", lines, method="POST")
        ).close()
        urllib.request.urlopen(f"{address}/internal/force_flush").close()
        yield start_s, address


def cluster(address, *, partial=False):
    """Return the routes of vmselect, with the tenant in the path."""

    def respond(path, parameters):
        if not path.startswith(TENANT):
            return Reply(400, f'unsupported path requested: "{path}"'.encode(), "text/plain")
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{address}{path.removeprefix(TENANT)}?{query}") as answer:
            body = answer.read()
        if partial:
            body = json.dumps({**json.loads(body), "isPartial": True}).encode()
        return Reply(200, body)

    return respond


def power(address, start_s):
    source = PrometheusSource(address)
    try:
        return source.fetch([m.GPU_POWER], {"gpu": "3"}, start_s, start_s + RUN_S)
    finally:
        source.close()


def test_cluster_returns_samples_of_its_storage(stored_run):
    start_s, storage = stored_run
    with http_server(cluster(storage)) as (address, _):
        behind = power(f"http://{address}{TENANT}", start_s)

    assert len(behind) == RUN_S
    assert behind.rows() == power(storage, start_s).rows()
    assert behind.value[0] == long_run.power_w(3, behind.t[:1] - start_s, RUN_S)[0]


def test_cluster_without_tenant_in_path_names_the_path(stored_run):
    start_s, storage = stored_run
    with (
        http_server(cluster(storage)) as (address, _),
        pytest.raises(FetchError, match="…/select/0/prometheus"),
    ):
        power(f"http://{address}", start_s)


def test_cluster_partial_result_is_an_error(stored_run):
    start_s, storage = stored_run
    with (
        http_server(cluster(storage, partial=True)) as (address, _),
        pytest.raises(FetchError, match="partial result"),
    ):
        power(f"http://{address}{TENANT}", start_s)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_prometheus_failing_server_is_no_wrong_path(status):
    with (
        http_server(lambda *_: Reply(status, b"x", "text/plain")) as (address, _),
        pytest.raises(FetchError) as refused,
    ):
        PrometheusSource(f"http://{address}").fetch([m.GPU_POWER], {}, 0, 60)

    assert f"returned HTTP {status}" in str(refused.value)
    assert "path" not in f"{refused.value} {refused.value.remedy}"
