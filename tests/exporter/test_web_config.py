"""The web-config file: what is read, what is refused in one line, what a change does."""

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

from exporter.web.config import LiveWebConfig, load
from exporter.web.reloaded import FileError, Reloaded
from tests.exporter.web_files import hashed, make_keys, web_config


@pytest.fixture
def keys(tmp_path):
    made = make_keys(tmp_path)
    made.server()
    assert made.ca_file.exists()
    return made


def tls(**more):
    return {"tls_server_config": {"cert_file": "server.crt", "key_file": "server.key", **more}}


def test_a_file_with_everything_is_read_relative_to_itself(tmp_path, keys, monkeypatch):
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
    config = load(web_config(tmp_path, content))

    assert config.tls.cert_file == tmp_path / "server.crt"
    assert config.context.verify_mode == ssl.CERT_REQUIRED
    assert config.context.minimum_version == ssl.TLSVersion.TLSv1_3
    assert config.headers == (("X-Frame-Options", "deny"),)
    assert [name for name, _ in config.users] == ["ann", "bob"]
    assert config.guarded
    assert [remark.split(" ")[0].split(".")[-1] for remark in config.remarks] == [
        "http2",
        "rate_limit",
        "curve_preferences",
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}", "tls_server_config:\nbasic_auth_users:\n", "\ufeff{}"])
def test_a_file_that_says_nothing_is_plain_http_for_all(tmp_path, text):
    path = tmp_path / "web.yml"
    path.write_text(text)
    config = load(path)

    assert (config.context, config.users, config.guarded) == (None, (), False)


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
def test_each_kind_of_client_authentication_is_served(tmp_path, keys, kind, verify, guarded):
    more = {} if kind == "NoClientCert" else {"client_ca_file": "ca.crt"}
    config = load(web_config(tmp_path, tls(client_auth_type=kind, **more)))

    assert (config.context.verify_mode, config.guarded) == (verify, guarded)
    assert any(kind in remark for remark in config.remarks) == (kind in ("RequestClientCert", "RequireAnyClientCert"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("tls_server_config: {cert_fil: a}", ["tls_server_config.cert_fil is no key"]),
        ("tls_server_config: {cert_file: a}", ["tls_server_config.key_file", "required"]),
        ("tls: {}", ["tls is no key"]),
        ("basic_auth_users: [ann]", ["basic_auth_users"]),
        ("basic_auth_users: {ann: secret}", ["basic_auth_users.ann", "no bcrypt hash", "htpasswd"]),
        ("basic_auth_users: {ann: $2b$31$" + "a" * 53 + "}", ["ann", "cost 31", "4 to 16"]),
        ("basic_auth_users: {ann: [12]}", ["basic_auth_users.ann"]),
        ("http_server_config: {headers: {Server: x}}", ["'Server'", "X-Frame-Options"]),
        ('http_server_config: {headers: {X-Frame-Options: "a\\r\\nb: c"}}', ["X-Frame-Options", "one line"]),
        ("http_server_config: {http2: maybe}", ["http2"]),
        ("a: [", ["no YAML"]),
        ("a: &a [*a]", ["no YAML", "recursive"]),
        ("!!python/object/apply:os.system [id]", ["the file"]),
        ("- a", ["the file"]),
        ("!!int '': x", ["the file"]),
        ("? [a]\n: b", ["no YAML"]),
        ("[" * 100_000, ["no YAML"]),
        ("#" * 2_000_000, ["larger than"]),
        ("\udcff", ["UTF-8"]),
    ],
)
def test_what_cannot_be_is_one_line_with_the_key(tmp_path, content, words):
    path = tmp_path / "web.yml"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(FileError) as refused:
        load(path)

    text = str(refused.value)
    assert text.startswith(f"--web.config.file {path}: ")
    assert "\n" not in text
    assert "secret" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"cert_file": "none.crt"}, [": cert_file ", "none.crt cannot be read: No such file"]),
        ({"key_file": "none.key"}, [": key_file ", "none.key cannot be read: No such file"]),
        ({"cert_file": "web.yml"}, ["web.yml holds no PEM certificate; one begins with"]),
        ({"key_file": "web.yml"}, ["web.yml holds no PEM key; one begins with"]),
        ({"key_file": "other.key"}, ["other.key", "not the key of"]),
        ({"key_file": "locked.key"}, ["encrypted", "openssl pkey"]),
        ({"client_auth_type": "Maybe"}, ["client_auth_type", "RequireAndVerifyClientCert"]),
        ({"client_auth_type": "RequireAndVerifyClientCert"}, ["needs client_ca_file"]),
        ({"client_ca_file": "ca.crt"}, ["client_ca_file without client_auth_type"]),
        ({"client_auth_type": "VerifyClientCertIfGiven", "client_ca_file": "server.key"}, ["no PEM certificate"]),
        ({"client_allowed_sans": ["a"]}, ["client_allowed_sans needs"]),
        ({"min_version": "TLS10"}, ["min_version", "TLS12 or TLS13"]),
        ({"min_version": "TLS13", "max_version": "TLS12"}, ["min_version is above"]),
        ({"cipher_suites": ["TLS_RSA_WITH_RC4_128_SHA"]}, ["RC4", "TLS_ECDHE"]),
        ({"cipher_suites": ["TLS_AES_128_GCM_SHA256"]}, ["min_version: TLS13"]),
    ],
)
def test_tls_that_cannot_be_is_one_line(tmp_path, keys, more, words):
    keys.issue("other", "localhost")
    key = load_pem_private_key((tmp_path / "server.key").read_bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (tmp_path / "locked.key").write_bytes(locked)
    with pytest.raises(FileError) as refused:
        load(web_config(tmp_path, tls(**more)))

    for word in words:
        assert word in str(refused.value)


# -- a change


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_a_file_is_looked_at_once_a_second_and_a_broken_one_is_said_once(tmp_path, caplog):
    path, clock = tmp_path / "n", Clock()
    path.write_text("1")

    def read():
        if not path.read_text().isdecimal():
            raise FileError(f"{path}: no number; write one")
        return int(path.read_text())

    file = Reloaded(read, lambda _: [path], clock=clock)
    path.write_text("22")
    assert file.now() == 1  # it is not yet looked at
    clock.now_s = 1.0
    assert file.now() == 22

    with caplog.at_level(logging.WARNING):
        for clock.now_s in (2.5, 4.0, 5.5):
            path.write_text("x" * int(clock.now_s))
            assert file.now() == 22
    assert caplog.text.count("no number; write one; going on with what was read before") == 1

    path.unlink()
    clock.now_s = 7.0
    with pytest.raises(FileNotFoundError):  # a loader that lets it out: a bug is not hidden
        file.now()


def test_a_rotated_pair_that_does_not_fit_yet_keeps_the_old_one(tmp_path, keys, caplog):
    live = LiveWebConfig(web_config(tmp_path, tls()))
    live._file._clock = clock = Clock()
    live._file._looked_s = 0.0
    first = live.now().context
    key_file = tmp_path / "server.key"
    old_key = key_file.read_bytes()
    keys.server()
    new_key = key_file.read_bytes()
    key_file.write_bytes(old_key)

    clock.now_s = 1.5
    assert live.now().context is first
    assert "is not the key of" in caplog.text
    key_file.write_bytes(new_key)
    clock.now_s = 3.0
    assert live.now().context is not first


def test_users_come_and_go_with_the_file_also_through_a_link(tmp_path):
    """As Kubernetes mounts a secret: the file is a link to a folder that is swapped."""
    for name, user in (("old", "ann"), ("new", "bob")):
        (tmp_path / name).mkdir()
        web_config(tmp_path / name, {"basic_auth_users": {user: hashed()}})
    (tmp_path / "data").symlink_to("old")
    (tmp_path / "web.yml").symlink_to("data/web.yml")
    live = LiveWebConfig(tmp_path / "web.yml")
    live._file._clock = clock = Clock()
    live._file._looked_s = 0.0
    assert [name for name, _ in live.now().users] == ["ann"]

    (tmp_path / "link").symlink_to("new")
    (tmp_path / "link").replace(tmp_path / "data")
    clock.now_s = 2.0
    assert [name for name, _ in live.now().users] == ["bob"]


# -- anything at all


def refusal(path):
    try:
        load(path)
    except FileError as error:
        return str(error)
    return ""


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
KEYS = st.sampled_from(
    ["tls_server_config", "http_server_config", "basic_auth_users", "rate_limit", "cert_file", "key_file", "headers"]
) | st.text(max_size=10)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(TREES)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_yaml_is_a_configuration_or_one_line(tmp_path, tree):
    path = tmp_path / "any.yml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    assert "\n" not in refusal(path)


@given(st.binary(max_size=200) | st.text("{}[]:-&*!|>%@`'\"#, \n\tab01$", max_size=80).map(str.encode))
@example(b"? !!binary x\n: y")
@example(b"!!timestamp 9999-99-99")
@example(b"!!int ''")
@example(b"{[]: 1}")
@settings(max_examples=1_000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_configuration_or_one_line(tmp_path, content):
    path = tmp_path / "any.yml"
    path.write_bytes(content)
    assert "\n" not in refusal(path)
