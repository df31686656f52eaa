"""Web configuration file: content, one-line errors and changes."""

import logging
import ssl

import pytest
import yaml
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.exporter.web.files import hashed, make_keys, web_config
from wattline_exporter.config.reloadable_file import ConfigFileError, ReloadableFile
from wattline_exporter.web.web_config import LiveWebConfig, load_web_config


@pytest.fixture
def keys(tmp_path):
    test_keys = make_keys(tmp_path)
    test_keys.server()
    assert test_keys.ca_file.exists()
    return test_keys


def tls(**more):
    return {"tls_server_config": {"cert_file": "server.crt", "key_file": "server.key", **more}}


def test_web_config_paths_are_relative_to_the_file(tmp_path, keys, monkeypatch):
    monkeypatch.chdir("/")
    content = {
        **tls(
            client_auth_type="RequireAndVerifyClientCert",
            client_ca_file="ca.crt",
            client_allowed_sans=["prometheus"],
            min_version="TLS13",
            cipher_suites=["TLS_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"],
            curve_preferences=["X25519"],
            prefer_server_cipher_suites=True,
        ),
        "http_server_config": {"http2": True, "headers": {"x-frame-options": "deny"}},
        "basic_auth_users": {"ann": hashed(), "bob": "$2y$10$" + "a" * 53},
        "rate_limit": {"interval": "1s", "burst": 20},
    }
    config = load_web_config(web_config(tmp_path, content))

    assert config.tls.cert_file == tmp_path / "server.crt"
    assert config.context.verify_mode == ssl.CERT_REQUIRED
    assert config.context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert config.headers == (("X-Frame-Options", "deny"),)
    assert [name for name, _ in config.users] == ["ann", "bob"]
    assert config.requires_authentication
    assert [remark.split(" ")[0].split(".")[-1] for remark in config.warnings] == [
        "http2",
        "rate_limit",
        "curve_preferences",
    ]


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "{}", "tls_server_config:\nbasic_auth_users:\n", "\ufeff{}"]
)
def test_web_config_empty_file_is_open_http(tmp_path, text):
    path = tmp_path / "web.yml"
    path.write_text(text)
    config = load_web_config(path)

    assert (config.context, config.users, config.requires_authentication) == (None, (), False)


@pytest.mark.parametrize(
    ("kind", "verify", "guarded"),
    [
        ("NoClientCert", ssl.CERT_NONE, False),
        ("RequestClientCert", ssl.CERT_NONE, False),
        ("RequireAnyClientCert", ssl.CERT_REQUIRED, True),
        ("VerifyClientCertIfGiven", ssl.CERT_OPTIONAL, False),
        ("RequireAndVerifyClientCert", ssl.CERT_REQUIRED, True),
    ],
)
def test_web_config_client_auth_type_is_mapped(tmp_path, keys, kind, verify, guarded):
    more = {} if kind == "NoClientCert" else {"client_ca_file": "ca.crt"}
    config = load_web_config(web_config(tmp_path, tls(client_auth_type=kind, **more)))

    assert (config.context.verify_mode, config.requires_authentication) == (verify, guarded)
    assert any(kind in remark for remark in config.warnings) == (
        kind in ("RequestClientCert", "RequireAnyClientCert")
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("tls_server_config: {cert_fil: a}", ["tls_server_config.cert_fil: unknown key"]),
        ("tls_server_config: {cert_file: a}", ["tls_server_config.key_file", "required"]),
        ("tls: {}", ["tls: unknown key"]),
        ("basic_auth_users: [ann]", ["basic_auth_users"]),
        (
            "basic_auth_users: {ann: secret}",
            ["basic_auth_users.ann", "not a bcrypt hash", "htpasswd"],
        ),
        ("basic_auth_users: {ann: $2b$31$" + "a" * 53 + "}", ["ann", "cost 31", "4 to 16"]),
        ("basic_auth_users: {ann: [12]}", ["basic_auth_users.ann"]),
        ("http_server_config: {headers: {Server: x}}", ["'Server'", "X-Frame-Options"]),
        (
            'http_server_config: {headers: {X-Frame-Options: "a\\r\\nb: c"}}',
            ["X-Frame-Options", "one line"],
        ),
        ("http_server_config: {http2: maybe}", ["http2"]),
        ("a: [", ["invalid YAML"]),
        ("a: &a [*a]", ["invalid YAML", "recursive"]),
        ("!!python/object/apply:os.system [id]", ["the file"]),
        ("- a", ["the file"]),
        ("!!int '': x", ["the file"]),
        ("? [a]\n: b", ["invalid YAML"]),
        ("[" * 100_000, ["invalid YAML"]),
        ("#" * 2_000_000, ["larger than"]),
        ("\udcff", ["UTF-8"]),
    ],
)
def test_web_config_invalid_key_is_one_line(tmp_path, content, words):
    path = tmp_path / "web.yml"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigFileError) as refused:
        load_web_config(path)

    text = str(refused.value)
    assert text.startswith(f"--web.config.file {path}: ")
    assert "\n" not in text
    assert "secret" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cert_file": "none.crt"}, [": cannot read cert_file ", "none.crt: No such file"]),
        ({"key_file": "none.key"}, [": cannot read key_file ", "none.key: No such file"]),
        ({"cert_file": "web.yml"}, ["web.yml is not a PEM certificate"]),
        ({"key_file": "web.yml"}, ["web.yml is not a PEM key"]),
        ({"key_file": "other.key"}, ["other.key", "does not match"]),
        ({"key_file": "locked.key"}, ["encrypted", "openssl pkey"]),
        ({"client_auth_type": "Maybe"}, ["client_auth_type", "RequireAndVerifyClientCert"]),
        ({"client_auth_type": "RequireAndVerifyClientCert"}, ["needs client_ca_file"]),
        ({"client_ca_file": "ca.crt"}, ["client_ca_file needs client_auth_type"]),
        (
            {"client_auth_type": "VerifyClientCertIfGiven", "client_ca_file": "server.key"},
            ["not a PEM certificate"],
        ),
        ({"client_allowed_sans": ["a"]}, ["client_allowed_sans needs"]),
        ({"min_version": "TLS10"}, ["min_version", "TLS12 or TLS13"]),
        ({"min_version": "TLS13", "max_version": "TLS12"}, ["min_version is above"]),
        ({"cipher_suites": ["TLS_RSA_WITH_RC4_128_SHA"]}, ["RC4", "TLS_ECDHE"]),
        ({"cipher_suites": ["TLS_AES_128_GCM_SHA256"]}, ["min_version: TLS13"]),
    ],
)
def test_web_config_invalid_tls_is_one_line(tmp_path, keys, more, words):
    keys.issue("other", "localhost")
    key = load_pem_private_key((tmp_path / "server.key").read_bytes(), None)
    locked = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    (tmp_path / "locked.key").write_bytes(locked)
    with pytest.raises(ConfigFileError) as refused:
        load_web_config(web_config(tmp_path, tls(**more)))

    for word in words:
        assert word in str(refused.value)


# -- changes of the file


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_web_config_is_checked_once_a_second_and_error_logged_once(tmp_path, caplog):
    path, clock = tmp_path / "n", Clock()
    path.write_text("1")

    def read():
        if not path.read_text().isdecimal():
            raise ConfigFileError(f"{path}: no number; write one")
        return int(path.read_text())

    file = ReloadableFile(read, lambda _: [path], clock=clock)
    path.write_text("22")
    assert file.now() == 1  # not checked yet
    clock.now_s = 1.0
    assert file.now() == 22

    with caplog.at_level(logging.WARNING):
        for clock.now_s in (2.5, 4.0, 5.5):
            path.write_text("x" * int(clock.now_s))
            assert file.now() == 22
    assert caplog.text.count("no number; write one; the previous content stays in use") == 1

    path.unlink()
    clock.now_s = 7.0
    with pytest.raises(FileNotFoundError):  # an unexpected error of the loader is not hidden
        file.now()


def test_web_config_unmatched_rotated_pair_keeps_the_old_one(tmp_path, keys, caplog):
    live = LiveWebConfig(web_config(tmp_path, tls()))
    live._file._clock = clock = Clock()
    live._file._checked_s = 0.0
    first = live.now().context
    key_file = tmp_path / "server.key"
    old_key = key_file.read_bytes()
    keys.server()
    new_key = key_file.read_bytes()
    key_file.write_bytes(old_key)

    clock.now_s = 1.5
    assert live.now().context is first
    assert "does not match" in caplog.text
    key_file.write_bytes(new_key)
    clock.now_s = 3.0
    assert live.now().context is not first


def test_web_config_users_change_with_the_file_and_its_link(tmp_path):
    """As Kubernetes mounts a secret: the file is a link to a folder that is swapped."""
    for name, user in (("old", "ann"), ("new", "bob")):
        (tmp_path / name).mkdir()
        web_config(tmp_path / name, {"basic_auth_users": {user: hashed()}})
    (tmp_path / "data").symlink_to("old")
    (tmp_path / "web.yml").symlink_to("data/web.yml")
    live = LiveWebConfig(tmp_path / "web.yml")
    live._file._clock = clock = Clock()
    live._file._checked_s = 0.0
    assert [name for name, _ in live.now().users] == ["ann"]

    (tmp_path / "link").symlink_to("new")
    (tmp_path / "link").replace(tmp_path / "data")
    clock.now_s = 2.0
    assert [name for name, _ in live.now().users] == ["bob"]


# -- arbitrary content


def refusal(path):
    try:
        load_web_config(path)
    except ConfigFileError as error:
        return str(error)
    return ""


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
KEYS = st.sampled_from(
    [
        "tls_server_config",
        "http_server_config",
        "basic_auth_users",
        "rate_limit",
        "cert_file",
        "key_file",
        "headers",
    ]
) | st.text(max_size=10)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(TREES)
@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_web_config_any_yaml_is_valid_or_one_line(tmp_path, tree):
    path = tmp_path / "any.yml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert "\n" not in refusal(path)


@given(
    st.binary(max_size=200) | st.text("{}[]:-&*!|>%@`'\"#, \n\tab01$", max_size=80).map(str.encode)
)
@example(b"? !!binary x\n: y")
@example(b"!!timestamp 9999-99-99")
@example(b"!!int ''")
@example(b"{[]: 1}")
@settings(
    max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_web_config_any_bytes_are_valid_or_one_line(tmp_path, content):
    path = tmp_path / "any.yml"
    path.write_bytes(content)
    assert "\n" not in refusal(path)
