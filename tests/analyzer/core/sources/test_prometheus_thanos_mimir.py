"""Source of raw samples with the answers and errors of Thanos and Mimir."""

import pytest

from tests.analyzer.core.sources.test_prometheus import fetch_power
from tests.analyzer.loopback import Reply, error_reply, history_api, http_server
from tests.analyzer.node import START_S
from wattline_analyzer.core.sources.base import FetchError

WARNED = '{{"status":"success","data":{{"resultType":"matrix","result":[]}},"warnings":["{}"]}}'


def test_fetch_thanos_requests_raw_deduplicated_samples(steady_history, client):
    with http_server(history_api(steady_history)) as (address, requests):
        fetch_power(client(f"http://{address}"))

    parameters = requests.parameters[0]
    assert (
        parameters["partial_response"],
        parameters["dedup"],
        parameters["max_source_resolution"],
    ) == (
        "false",
        "true",
        "0s",
    )


def test_fetch_thanos_without_store_is_an_error(client):
    """Thanos returns a partial result if a proxy or an old version ignores the request's
    parameter.
    """
    lost = (
        "receive series from Addr: 10.0.0.7:10901: rpc error: code = Unavailable desc = "
        "connection refused"
    )
    reply = Reply(200, WARNED.format(lost).encode())

    with (
        http_server(lambda *_: reply) as (address, _),
        pytest.raises(FetchError, match=r"partial result: .*10\.0\.0\.7") as caught,
    ):
        fetch_power(client(f"http://{address}"))

    assert "one of its stores did not respond" in caught.value.remedy


def test_fetch_thanos_without_data_is_empty(client):
    reply = Reply(200, WARNED.format("No StoreAPIs matched for this query").encode())

    with http_server(lambda *_: reply) as (address, _):
        assert not len(fetch_power(client(f"http://{address}")))


def test_fetch_mimir_uses_path_and_tenant(steady_history, client):
    answer = history_api(steady_history, "/prometheus")

    with http_server(answer) as (address, requests):
        frame = fetch_power(
            client(f"http://{address}/prometheus", headers=["X-Scope-OrgID: team-a|team-b"])
        )

    assert len(frame) == 40
    assert requests.headers[0]["x-scope-orgid"] == "team-a|team-b"


def test_fetch_mimir_without_tenant_names_header(client):
    reply = Reply(401, b"no org id\n", "text/plain")

    with (
        http_server(lambda *_: reply) as (address, _),
        pytest.raises(FetchError, match="give --header 'X-Scope-OrgID: TENANT'"),
    ):
        fetch_power(client(f"http://{address}"))


def test_fetch_mimir_query_limit_uses_shorter_chunks(steady_history, client):
    answer = history_api(steady_history)

    def limited(path, parameters):
        if int(parameters["query"].rpartition("[")[2].removesuffix("ms]")) > 7_200_000:
            text = (
                "the query time range exceeds the limit (limit: 2h0m0s) "
                "(err-mimir-max-query-length)"
            )
            return error_reply(422, "bad_data", text)
        return answer(path, parameters)

    with http_server(limited) as (address, _):
        assert (
            len(fetch_power(client(f"http://{address}"), START_S - 20_000, START_S + 20_000)) == 242
        )
