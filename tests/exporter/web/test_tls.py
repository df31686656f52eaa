"""TLS with a real CA: client certificates and rotation."""

import socket
import ssl
import subprocess
import time

import pytest
import requests
import trustme

from exporter.config.settings import Settings
from exporter.web.listener import ConnectionLimits
from tests.daemon import eventually
from tests.exporter.web.files import PASSWORD, TOKEN, hashed, make_keys, serial, web_config
from tests.exporter.web.server_thread import serving
from tests.servers import prometheus, query


@pytest.fixture
def keys(tmp_path):
    made = make_keys(tmp_path)
    made.server()
    return made


def tls(keys, **more):
    return {"tls_server_config": {"cert_file": "server.crt", "key_file": "server.key", **more}}


def served(keys, content, bounds=None, **more):
    settings = Settings(
        state_path=keys.folder,
        listen_address="127.0.0.1:0",
        web_config=web_config(keys.folder, content),
        **more,
    )
    return serving(settings, bounds)


def get(started, keys, path="/", **more):
    return requests.get(started.url + path, verify=keys.ca_file, timeout=20, **more)


def test_tls_server_refuses_plain_http(keys):
    with served(keys, tls(keys)) as started:
        assert started.url.startswith("https://")
        assert get(started, keys).text == "here\n"
        with pytest.raises(requests.ConnectionError):
            requests.get(started.url.replace("https", "http"), timeout=20)
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(started.url, timeout=20)  # a client without the CA refuses it
        assert get(started, keys).text == "here\n"


def test_tls_minimum_version_is_enforced(keys):
    with served(keys, tls(keys, min_version="TLS13")) as started:
        context = ssl.create_default_context(cafile=keys.ca_file)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(started.address, timeout=20) as client, pytest.raises(ssl.SSLError):
            context.wrap_socket(client, server_hostname="localhost")
        assert get(started, keys).status_code == 200


@pytest.mark.parametrize(
    ("kind", "without", "with_ours", "with_others"),
    [
        ("NoClientCert", True, True, True),
        ("RequestClientCert", True, True, True),
        ("RequireAnyClientCert", False, True, False),
        ("VerifyClientCertIfGiven", True, True, False),
        ("RequireAndVerifyClientCert", False, True, False),
    ],
)
def test_tls_client_certificate_is_required_as_configured(keys, kind, without, with_ours, with_others):
    more = {} if kind == "NoClientCert" else {"client_ca_file": str(keys.ca_file)}
    certificates = (None, keys.issue("ours", "prometheus"), keys.issue("theirs", "prometheus", ca=trustme.CA()))
    with served(keys, tls(keys, client_auth_type=kind, **more)) as started:
        for certificate, accepted in zip(certificates, (without, with_ours, with_others), strict=True):
            if accepted:
                assert get(started, keys, cert=certificate).status_code == 200
            else:
                with pytest.raises((requests.exceptions.SSLError, requests.ConnectionError)):
                    get(started, keys, cert=certificate)
        eventually(lambda: started.open == 0, "what was refused holds no connection")


def test_tls_only_allowed_client_names_are_accepted(keys):
    more = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": str(keys.ca_file)}
    with served(keys, tls(keys, client_allowed_sans=["prometheus", "10.0.0.1"], **more)) as started:
        for name, status in (("prometheus", 200), ("10.0.0.1", 200), ("grafana", 403)):
            answer = get(started, keys, cert=keys.issue(name, name))
            assert answer.status_code == status
        assert "grafana" in answer.json()["detail"]


def test_tls_rotated_certificate_is_served_without_restart(keys):
    with served(keys, tls(keys)) as started, requests.Session() as kept:
        assert kept.get(started.url, verify=keys.ca_file, timeout=20).status_code == 200
        before = serial(started.address)
        keys.server()
        eventually(lambda: serial(started.address) != before, "the new certificate is served")

        assert kept.get(started.url, verify=keys.ca_file, timeout=20).status_code == 200
        (keys.folder / "server.crt").write_text("broken")
        time.sleep(1.1)
        assert get(started, keys).status_code == 200  # the last valid one stays


def test_tls_client_without_handshake_is_disconnected(keys):
    with served(keys, tls(keys), ConnectionLimits(handshake_s=0.5, connections=4)) as started:
        clients = [socket.create_connection(started.address, timeout=20) for _ in range(4)]
        eventually(lambda: started.open == 4, "four that say nothing")
        eventually(lambda: started.open == 0, "they are cut off")
        assert get(started, keys).status_code == 200
        for client in clients:
            client.close()


def test_web_config_headers_are_in_each_response(keys):
    content = {"http_server_config": {"headers": {"X-Frame-Options": "deny"}}, "basic_auth_users": {"ann": hashed()}}
    with served(keys, content) as started:
        for more in ({}, {"auth": ("ann", PASSWORD)}):
            assert requests.get(started.url, timeout=20, **more).headers["X-Frame-Options"] == "deny"


@pytest.mark.parametrize("how", ["basic", "bearer"])
def test_prometheus_scrapes_with_tls_and_password_or_token(start, keys, how):
    token = keys.folder / "token"
    token.write_text(TOKEN)
    path = web_config(keys.folder, {**tls(keys), "basic_auth_users": {"ann": hashed()}})
    secret = (
        {"basic_auth": {"username": "ann", "password": PASSWORD}}
        if how == "basic"
        else {"authorization": {"credentials_file": str(token)}}
    )
    options = ("--web.config.file", str(path), "--web.api-token-file", str(token))
    with start(*options, ready=False) as exporter:
        address = exporter.url.removeprefix("https://")
        job = {"scheme": "https", "tls_config": {"ca_file": str(keys.ca_file)}, **secret}
        with prometheus(keys.folder, [address], job=job) as server:
            eventually(lambda: query(server, "wattline_build_info") != [], "it was scraped")
            assert query(server, "up") == [1.0]
        assert requests.get(f"{exporter.url}/metrics", verify=keys.ca_file, timeout=20).status_code == 401
        assert "Traceback" not in exporter.log()


def test_tls_chain_is_accepted_by_openssl(keys):
    with served(keys, tls(keys)) as started:
        address = f"{started.address[0]}:{started.address[1]}"
        done = subprocess.run(
            ["openssl", "s_client", "-connect", address, "-CAfile", keys.ca_file, "-verify_return_error", "-brief"],
            input=b"",
            capture_output=True,
            timeout=30,
            check=False,
        )
    assert b"Verification: OK" in done.stdout + done.stderr
