"""Push options: resulting settings, and one-line errors without secrets."""

import pytest

from tests.exporter.commands import assert_one_line, exporter
from wattline_exporter.config.settings import Settings
from wattline_exporter.config.values import UsageError
from wattline_exporter.push.config import push_target
from wattline_exporter.push.remote_write import REMOTE_WRITE, TEXT

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
def test_push_url_path_selects_the_format(tmp_path, url, form):
    assert target(tmp_path, url).form is form


def test_push_instance_label_is_the_host_unless_configured(tmp_path):
    named = target(tmp_path, push_labels=("cluster=north", "instance=rack7-n3"))

    assert target(tmp_path).labels == {"instance": "n-1", "job": "wattline"}
    assert named.labels == {"instance": "rack7-n3", "job": "wattline", "cluster": "north"}


def test_push_secret_file_is_reloaded(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")

    assert target(tmp_path, push_token_file=secret).authorization() == "Bearer s3cret"
    assert (
        target(tmp_path, push_basic_auth=f"joe:{secret}").authorization()
        == "Basic am9lOnMzY3JldA=="
    )  # joe:s3cret


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--push.url", "vm:8428"], ["--push.url", "http://HOST/PATH"]),
        (["--push.url", "http://joe:s3cret@vm/api/v1/write"], ["--push.url", "without a user"]),
        (
            ["--push.url", "http://vm:8428"],
            ["--push.url", "/api/v1/import/prometheus", "/api/v1/write"],
        ),
        (["--push.url", URL, "--no-history"], ["--push.url", "--no-history", "remove one"]),
        (["--push.every", "15s"], ["--push.every needs --push.url"]),
        (["--push.label", "a=b"], ["--push.label needs --push.url"]),
        (["--push.header", "a=b"], ["--push.header needs --push.url"]),
        (["--push.ca-file", "/ca"], ["--push.ca-file needs --push.url"]),
        (
            ["--push.url", URL, "--push.header", "X-Key: a"],
            ["--push.header", "NAME=VALUE", "number 1"],
        ),
        (["--push.url", URL, "--push.every", "now"], ["--push.every", "1s to 1h", "'now'"]),
        (["--push.url", URL, "--push.every", "0"], ["--push.every", "1s to 1h"]),
        (
            ["--push.url", URL, "--push.label", "cluster"],
            ["--push.label", "name=value", "'cluster'"],
        ),
        (["--push.url", URL, "--push.label", "a-b=c"], ["--push.label", "'a-b=c'"]),
        (["--push.url", URL, "--push.label", "gpu=0"], ["--push.label gpu", "choose another"]),
        (
            ["--push.url", URL, "--push.label", "a=b", "--push.label", "a=c"],
            ["--push.label a", "twice"],
        ),
        (
            ["--push.url", URL, "--push.token-file", "/no/such"],
            ["--push.token-file", "/no/such", "store the secret there"],
        ),
        (
            ["--push.url", URL, "--push.basic-auth", "joe"],
            ["--push.basic-auth", "USER:PASSWORD-FILE"],
        ),
        (
            ["--push.url", URL, "--push.basic-auth", "joe:/dev/null"],
            ["--push.basic-auth", "in one line"],
        ),
        (
            ["--push.url", URL, "--push.basic-auth", "a:/b", "--push.token-file", "/c"],
            ["remove one"],
        ),
        (
            ["--push.url", URL, "--push.ca-file", "/dev/null"],
            ["--push.ca-file", "certificates from /dev/null"],
        ),
        (
            ["--push.url", "http://vm/api/v1/write", "--push.ca-file", "/ca"],
            ["https:// in --push.url"],
        ),
    ],
)
def test_push_invalid_options_are_one_line(tmp_path, options, words):
    assert_one_line(exporter("serve", "--state.path", str(tmp_path / "state"), *options), 2, *words)
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
        (["content-type=hunter2"], ["--push.header content-type", "set by the exporter"]),
        (["Content-Encoding=hunter2"], ["--push.header Content-Encoding", "set by the exporter"]),
        (["Host=hunter2"], ["--push.header Host", "set by the exporter"]),
        (["X-Key=@/no/such"], ["--push.header X-Key", "/no/such", "store the secret there"]),
        (["X-Key=@/dev/null"], ["--push.header X-Key", "/dev/null", "in one line"]),
    ],
)
def test_push_invalid_header_is_refused_without_its_value(tmp_path, headers, words):
    with pytest.raises(UsageError) as refused:
        target(tmp_path, push_headers=tuple(headers))
    message = str(refused.value)
    assert [word for word in words if word not in message] == []
    assert [hidden for hidden in ("hunter", "hünter", "\n", "\r") if hidden in message] == []


@pytest.mark.parametrize("secret", ["hunter2\nhunter3", "hunter2\x00", b"hunter2\xff", ""])
def test_push_invalid_secret_file_is_refused_without_content(tmp_path, secret):
    (tmp_path / "secret").write_bytes(secret if isinstance(secret, bytes) else secret.encode())
    with pytest.raises(UsageError, match="store the secret there, in one line") as refused:
        target(tmp_path, push_token_file=tmp_path / "secret")
    assert "hunter" not in str(refused.value)
