"""Additional headers of push requests, such as a tenant or a secret."""

from tests.daemon import begin
from tests.exporter.push.history_client import PROMETHEUS
from tests.exporter.push.proxy import proxy
from tests.polling import eventually


def test_push_headers_are_in_each_request_and_not_in_the_log(tmp_path, start):
    """A secret is read again when its file changes."""
    key = tmp_path / "key"
    key.write_text("hunter2\n")
    with proxy("") as between:
        between.always = 204
        options = [
            "--push.url",
            between.url + PROMETHEUS,
            "--push.every",
            "1s",
            "--log.level",
            "debug",
        ]
        headers = [
            "--push.header",
            "X-Scope-OrgID=team north",
            "--push.header",
            f"x-api-key=@{key}",
        ]
        with start(*options, *headers) as exporter:
            begin(exporter)
            eventually(lambda: between.headers, "a request", exporter.log)
            first = len(between.headers)
            key.write_text("hunter3-longer\n")
            eventually(
                lambda: between.headers[-1]["x-api-key"] == "hunter3-longer",
                "the new key",
                exporter.log,
            )
            between.always = 401
            exporter.wait_for_metric(lambda value: value == 0.0, "wattline_push_up")
            landing = exporter.get("/")[1]
            log = exporter.log()

    assert {headers["x-scope-orgid"] for headers in between.headers} == {"team north"}
    assert {headers["x-api-key"] for headers in between.headers[:first]} == {"hunter2"}
    assert {headers["content-type"] for headers in between.headers} == {"application/x-protobuf"}
    assert {headers["x-prometheus-remote-write-version"] for headers in between.headers} == {
        "0.1.0"
    }
    assert "reloaded " in log
    for hidden in ("hunter", "team north"):
        assert hidden not in log
        assert hidden not in str(landing)
