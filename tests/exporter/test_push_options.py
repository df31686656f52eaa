"""The options of pushing: what they make, and what they refuse in one line that shows no secret."""

import pytest

from exporter.push.config import push_target
from exporter.push.encoding import REMOTE_WRITE, TEXT
from exporter.push.responses import answer
from exporter.settings import Settings, UsageError
from tests.exporter.test_cli import exporter, one_line

URL = "https://metrics.example/api/v1/write"


def target(tmp_path, url=URL, host="n-1", **given):
    return push_target(Settings(state_path=tmp_path, push_url=url, **given), host)


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("http://vm:8428/api/v1/import/prometheus", TEXT),
        ("http://vm:8480/insert/0/prometheus/api/v1/import/prometheus/", TEXT),
        ("http://prometheus:9090/api/v1/write", REMOTE_WRITE),
        ("https://mimir/api/v1/push", REMOTE_WRITE),
        ("https://thanos/api/v1/receive", REMOTE_WRITE),
    ],
)
def test_the_path_tells_how_to_send(tmp_path, url, form):
    assert target(tmp_path, url).form is form


def test_each_node_has_an_instance_of_its_own_unless_told_otherwise(tmp_path):
    named = target(tmp_path, push_labels=("cluster=north", "instance=rack7-n3"))

    assert target(tmp_path).labels == {"instance": "n-1", "job": "wattline"}
    assert named.labels == {"instance": "rack7-n3", "job": "wattline", "cluster": "north"}


def test_a_secret_is_read_again_when_its_file_changes(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")

    assert target(tmp_path, push_token_file=secret).authorization() == "Bearer s3cret"
    assert target(tmp_path, push_basic_auth=f"joe:{secret}").authorization() == "Basic am9lOnMzY3JldA=="  # joe:s3cret


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--push.url", "vm:8428"], ["--push.url", "http://HOST/PATH"]),
        (["--push.url", "http://joe:s3cret@vm/api/v1/write"], ["--push.url", "without a user"]),
        (["--push.url", "http://vm:8428"], ["--push.url", "/api/v1/import/prometheus", "/api/v1/write"]),
        (["--push.url", URL, "--no-history"], ["--push.url", "--no-history", "leave out one"]),
        (["--push.every", "15s"], ["--push.every does nothing without --push.url"]),
        (["--push.label", "a=b"], ["--push.label does nothing without --push.url"]),
        (["--push.header", "a=b"], ["--push.header does nothing without --push.url"]),
        (["--push.ca-file", "/ca"], ["--push.ca-file does nothing without --push.url"]),
        (["--push.url", URL, "--push.header", "X-Key: a"], ["--push.header", "NAME=VALUE", "number 1"]),
        (["--push.url", URL, "--push.every", "now"], ["--push.every", "1s to 1h", "'now'"]),
        (["--push.url", URL, "--push.every", "0"], ["--push.every", "1s to 1h"]),
        (["--push.url", URL, "--push.label", "cluster"], ["--push.label", "name=value", "'cluster'"]),
        (["--push.url", URL, "--push.label", "a-b=c"], ["--push.label", "'a-b=c'"]),
        (["--push.url", URL, "--push.label", "gpu=0"], ["--push.label gpu", "choose another"]),
        (["--push.url", URL, "--push.label", "a=b", "--push.label", "a=c"], ["--push.label a", "twice"]),
        (
            ["--push.url", URL, "--push.token-file", "/no/such"],
            ["--push.token-file", "/no/such", "store the secret there"],
        ),
        (["--push.url", URL, "--push.basic-auth", "joe"], ["--push.basic-auth", "USER:PASSWORD-FILE"]),
        (["--push.url", URL, "--push.basic-auth", "joe:/dev/null"], ["--push.basic-auth", "in one line"]),
        (["--push.url", URL, "--push.basic-auth", "a:/b", "--push.token-file", "/c"], ["leave out one"]),
        (["--push.url", URL, "--push.ca-file", "/dev/null"], ["--push.ca-file", "/dev/null", "no certificates"]),
        (["--push.url", "http://vm/api/v1/write", "--push.ca-file", "/ca"], ["--push.ca-file", "use https://"]),
    ],
)
def test_options_that_make_no_sense_are_refused_in_one_line(tmp_path, options, words):
    one_line(exporter("serve", "--state.path", str(tmp_path / "state"), *options), 2, *words)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        (["hunter2"], ["--push.header", "NAME=VALUE", "number 1"]),
        (["X-A=b", "X-Key: hunter2="], ["--push.header", "NAME=@FILE", "number 2"]),
        (["=hunter2"], ["--push.header", "NAME=VALUE"]),
        (["X-Key="], ["--push.header", "NAME=VALUE"]),
        (["X Key=hunter2"], ["--push.header", "NAME=VALUE"]),
        (["X-Key=hunter2\nX-Other: 1"], ["--push.header X-Key", "in one line"]),
        (["X-Key=hunter2\r"], ["--push.header X-Key", "in one line"]),
        (["X-Key= hunter2"], ["--push.header X-Key", "printable ASCII"]),
        (["X-Key=hünter2"], ["--push.header X-Key", "printable ASCII"]),
        (["X-Key=hunter2", "x-key=hunter3"], ["--push.header x-key", "twice"]),
        (["Authorization=Bearer hunter2"], ["--push.header Authorization", "--push.token-file"]),
        (["content-type=hunter2"], ["--push.header content-type", "sets it itself"]),
        (["Content-Encoding=hunter2"], ["--push.header Content-Encoding", "sets it itself"]),
        (["Host=hunter2"], ["--push.header Host", "sets it itself"]),
        (["X-Key=@/no/such"], ["--push.header X-Key", "/no/such", "store the secret there"]),
        (["X-Key=@/dev/null"], ["--push.header X-Key", "/dev/null", "in one line"]),
    ],
)
def test_headers_that_cannot_be_are_refused_and_their_values_not_shown(tmp_path, headers, words):
    with pytest.raises(UsageError) as refused:
        target(tmp_path, push_headers=tuple(headers))
    said = str(refused.value)
    assert [word for word in words if word not in said] == []
    assert [hidden for hidden in ("hunter", "hünter", "\n", "\r") if hidden in said] == []


@pytest.mark.parametrize("secret", ["hunter2\nhunter3", "hunter2\x00", b"hunter2\xff", ""])
def test_a_file_that_holds_no_secret_is_refused_and_not_shown(tmp_path, secret):
    (tmp_path / "secret").write_bytes(secret if isinstance(secret, bytes) else secret.encode())
    with pytest.raises(UsageError, match="store the secret there, in one line") as refused:
        target(tmp_path, push_token_file=tmp_path / "secret")
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind", "words"),
    [
        (204, {}, "", "accepted", ""),
        (200, {"Content-Type": "text/html"}, "<html>log in", "later", "is the path of --push.url right"),
        (302, {}, "", "later", "somewhere else"),
        (400, {}, "out of order sample", "refused", "out_of_order_time_window"),
        (400, {}, "label limit exceeded", "refused", "see the server's log"),
        (400, {}, "out of bounds: timestamp is too far in the future", "later", "is the clock of this machine"),
        (400, {}, "snappy: corrupt input", "later", "Content-Encoding"),
        (400, {}, "cannot read gzipped lines: unexpected EOF", "later", "Content-Encoding"),
        (400, {}, "out of bounds", "refused", "out_of_order_time_window"),
        (409, {}, "store locally for endpoint 127.0.0.1:10901: conflict", "refused", "out_of_order_time_window"),
        (400, {}, "Client sent an HTTP request to an HTTPS server.", "later", "use https://"),
        (400, {}, "unsupported path requested: /api/v1/wriet", "later", "is the path of --push.url right"),
        (422, {}, "invalid tenant id", "later", "is the path of --push.url right"),
        (401, {}, "", "later", "--push.token-file"),
        (404, {}, "404 page not found", "later", "--web.enable-remote-write-receiver"),
        (413, {}, "", "too_large", "greatest body"),
        (429, {"Retry-After": "7"}, "", "later", "takes no more"),
        (500, {"Retry-After": "7"}, "disk\nfull", "later", "HTTP 500 (disk full)"),
    ],
)
def test_an_answer_tells_whether_to_send_again(status, headers, body, kind, words):
    said = answer(status, headers, body)

    assert said.kind == kind
    assert words in said.text
    assert said.wait_s == (7.0 if status == 429 else None)


def test_a_wait_may_be_asked_for_by_a_date_and_is_an_hour_at_most():
    assert answer(503, {"Retry-After": "Fri, 01 Jan 2199 00:00:00 GMT"}, "").wait_s == 3_600.0
    assert answer(503, {"Retry-After": "Fri, 01 Jan 1999 00:00:00 GMT"}, "").wait_s == 0.0
    assert answer(503, {"Retry-After": "soon"}, "").wait_s is None
