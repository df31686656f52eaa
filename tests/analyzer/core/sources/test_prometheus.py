"""Source of raw samples, tested with simulated servers and their faults."""

import base64
import json
import threading

import numpy as np
import pytest

from tests.analyzer.loopback import Reply, error_reply, history_api, http_server
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline.contract import metrics as m
from wattline_analyzer.core.sample_table import rows_of
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.sources.prometheus import PrometheusSource

EMPTY = Reply(
    200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}}).encode()
)


def fetch_power(source, start_s=START_S, end_s=START_S + 20):
    return source.fetch([m.GPU_POWER], {}, start_s, end_s)


def test_fetch_returns_stored_samples_as_from_history(steady_history, client):
    with http_server(history_api(steady_history)) as (address, requests):
        server = fetch_power(client(f"http://{address}"))
    file = HistorySource(steady_history)
    stored = fetch_power(file)
    file.close()

    assert server.rows() == stored.rows()
    assert server.labels == ("metric", "instance", "gpu", "uuid")
    assert len(server) == 40  # 20 samples, at half seconds, of two GPUs
    assert requests.parameters[0]["query"].startswith("wattline_gpu_power_watts[")
    assert requests.parameters[0]["nocache"] == "1"


def test_fetch_several_metrics_keep_their_labels(steady_history, client):
    with http_server(history_api(steady_history)) as (address, requests):
        frame = client(f"http://{address}").fetch(
            [m.RUN_WORK, m.RUN_START], {"run_id": "train-1"}, START_S, START_S + 20
        )

    assert len(requests.paths) == 1
    assert set(frame.texts("metric")) == {m.RUN_WORK.name, m.RUN_START.name}
    assert set(rows_of(frame, m.RUN_WORK).texts("unit")) == {"generated_tokens"}
    assert set(rows_of(frame, m.RUN_START).texts("unit")) == {""}


def test_fetch_days_chunk_borders_lose_no_sample(tmp_path, client):
    times = scrape_times(
        3_600, START_S, START_S + 3 * 86_400
    )  # exactly at the borders of the chunks
    path = write_history(
        tmp_path, series_of_scrapes((t, scrape([NodeGpu([(0, 100)])], NodeRun(), t)) for t in times)
    )

    with http_server(history_api(path)) as (address, requests):
        frame = fetch_power(client(f"http://{address}"), START_S, START_S + 3 * 86_400)

    assert frame.t.tolist() == times
    assert len(requests.paths) > 1


def test_fetch_refused_result_uses_smaller_chunks(steady_history, client):
    answer = history_api(steady_history)

    def limited(path, parameters):
        window_ms = int(parameters["query"].rpartition("[")[2].removesuffix("ms]"))
        if window_ms > 3_600_000:
            return error_reply(
                422, "execution", "query processing would load too many samples into memory"
            )
        return answer(path, parameters)

    with http_server(limited) as (address, _):
        frame = fetch_power(client(f"http://{address}"), START_S - 10_000, START_S + 10_000)

    assert len(frame) == 242  # 121 samples of two GPUs


def test_fetch_refusing_server_ends_with_error(client):
    refusal = error_reply(
        422, "execution", "query processing would load too many samples into memory"
    )

    with (
        http_server(lambda *_: refusal) as (address, requests),
        pytest.raises(FetchError, match=r"refuses even .* too many"),
    ):
        fetch_power(client(f"http://{address}"), 0, 86_400)

    assert len(requests.paths) < 10


def test_fetch_drops_stale_markers(steady_history, client):
    def spoil(body):
        for series in body["data"]["result"]:
            series["values"][-1][1] = "NaN"

    with http_server(history_api(steady_history, spoil=spoil)) as (address, _):
        frame = fetch_power(client(f"http://{address}"))

    assert len(frame) == 38
    assert np.isfinite(frame.value).all()


def test_fetch_address_with_path_is_used(steady_history, client):
    with http_server(history_api(steady_history, "/select/0/prometheus")) as (address, requests):
        frame = fetch_power(client(f"http://{address}/select/0/prometheus/"))

    assert len(frame) == 40
    assert requests.paths == ["/select/0/prometheus/api/v1/query"]


def test_fetch_basic_auth_reads_password_file(tmp_path, client):
    (tmp_path / "password").write_text("s3cret\n")

    with http_server(lambda *_: EMPTY) as (address, requests):
        fetch_power(client(f"http://{address}", basic_auth=f"alice:{tmp_path / 'password'}"))

    assert (
        requests.headers[0]["authorization"]
        == f"Basic {base64.b64encode(b'alice:s3cret').decode()}"
    )


def test_fetch_sends_bearer_token_and_headers(tmp_path, client):
    (tmp_path / "token").write_text("t0ken\n")

    with http_server(lambda *_: EMPTY) as (address, requests):
        fetch_power(
            client(
                f"http://{address}",
                bearer_token_file=tmp_path / "token",
                headers=["X-Scope-OrgID: team"],
            )
        )

    assert requests.headers[0]["authorization"] == "Bearer t0ken"
    assert requests.headers[0]["x-scope-orgid"] == "team"


def test_fetch_query_notes_are_ignored(steady_history, client):
    def spoil(body):
        body["infos"] = ["PromQL info: metric might not be a counter"]

    with http_server(history_api(steady_history, spoil=spoil)) as (address, _):
        assert len(fetch_power(client(f"http://{address}"))) == 40


def test_fetch_from_loopback_requests_no_compression(steady_history, client):
    with http_server(history_api(steady_history)) as (address, requests):
        fetch_power(client(f"http://{address}"))
    far = PrometheusSource("http://prometheus:9090")
    far.close()

    assert requests.headers[0]["accept-encoding"] == "identity"
    assert far._session.headers["Accept-Encoding"] == "gzip"


def test_parts_are_in_time_order_and_complete(tmp_path, client):
    times = scrape_times(1_800, START_S, START_S + 2 * 86_400)
    path = write_history(
        tmp_path, series_of_scrapes((t, scrape([NodeGpu([(0, 100)])], NodeRun(), t)) for t in times)
    )
    file = HistorySource(path)

    with http_server(history_api(path)) as (address, _):
        for source in (client(f"http://{address}"), file):
            parts = list(source.parts([m.GPU_POWER], {}, times[0], times[-1]))
            assert len(parts) > 2
            assert [t for part in parts for _, series, _ in part for t in series] == times
    file.close()


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (Reply(401, b"no", "text/plain"), r"denied access \(HTTP 401\); give --basic-auth"),
        (
            Reply(200, b"<html>Log in</html>", "text/html"),
            r"HTTP 200 with text/html instead of .*; check the path of --source",
        ),
        (Reply(404, b"404 page not found", "text/plain"), r"HTTP 404 .*select/0/prometheus"),
        (
            error_reply(400, "bad_data", "parse error: unexpected }"),
            r"refused the query: parse error: unexpected }",
        ),
        (error_reply(503, "unavailable", "TSDB not ready"), r"refused the query: TSDB not ready"),
        (
            Reply(200, b'{"status":"success","isPartial":true,"data":{}}'),
            r"returned a partial result",
        ),
        (
            Reply(200, b'{"status":"success","data":{"resultType":"vector","result":[]}}'),
            r"returned no raw samples",
        ),
        (Reply(200, b"[]"), r"instead of Prometheus's JSON"),
    ],
    ids=lambda value: "" if isinstance(value, str) else f"{value.status}",
)
def test_fetch_invalid_response_names_cause_and_remedy(client, reply, expected):
    with (
        http_server(lambda *_: reply) as (address, _),
        pytest.raises(FetchError, match=expected) as caught,
    ):
        fetch_power(client(f"http://{address}"))

    assert "\n" not in str(caught.value)


def test_fetch_timeout_names_server(client):
    completed = threading.Event()

    def hang(*_):
        completed.wait(20)
        return EMPTY

    with http_server(hang) as (address, _):
        with pytest.raises(FetchError, match=rf"no response from http://{address} within 0 s"):
            fetch_power(client(f"http://{address}", timeout_s=0.2))
        completed.set()


def test_fetch_unreachable_server_is_named_without_password(client):
    with http_server(lambda *_: EMPTY) as (address, _):
        pass

    with pytest.raises(
        FetchError, match=rf"cannot connect to http://{address}; check that it is running"
    ) as caught:
        fetch_power(client(f"http://alice:s3cret@{address}"))

    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [("basic_auth", "alice"), ("basic_auth", "alice:"), ("headers", ["no colon"])],
)
def test_read_access_invalid_option_is_rejected(client, option, value):
    with pytest.raises(ValueError, match="not"):
        client("http://127.0.0.1:1", **{option: value})


def test_read_access_missing_password_file_is_named(client, tmp_path):
    with pytest.raises(FetchError, match=f"cannot read {tmp_path}/none"):
        client("http://127.0.0.1:1", basic_auth=f"alice:{tmp_path}/none")
