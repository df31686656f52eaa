"""TLS with a real CA: client certificates and rotation."""

import socket
import ssl
import subprocess
import time

import pytest
import requests
import trustme

from tests.exporter.web.files import PASSWORD, TOKEN, hashed, make_keys, serial, web_config
from tests.exporter.web.server_thread import run_server
from tests.polling import eventually
from tests.servers import prometheus, query
from wattline_exporter.config.settings import Settings
from wattline_exporter.web.listener import ConnectionLimits


@pytest.fixture
def keys(tmp_path):
    test_keys = make_keys(tmp_path)
    test_keys.server()
    return test_keys


def tls(keys, **more):
    return {"tls_server_config": {"cert_file": "server.crt", "key_file": "server.key", **more}}


def serve(keys, content, bounds=None, **more):
    settings = Settings(
        state_path=keys.folder,
        listen_address="127.0.0.1:0",
        web_config=web_config(keys.folder, content),
        **more,
    )
    return run_server(settings, bounds)


def get(server, keys, path="/", **more):
    return requests.get(server.url + path, verify=keys.ca_file, timeout=20, **more)


def test_tls_server_refuses_plain_http(keys):
    with serve(keys, tls(keys)) as server:
        assert server.url.startswith("https://")
        assert get(server, keys).text == "here\n"
        with pytest.raises(requests.ConnectionError):
            requests.get(server.url.replace("https", "http"), timeout=20)
        with pytest.raises(requests.exceptions.SSLError):
            requests.get(server.url, timeout=20)  # a client without the CA refuses it
        assert get(server, keys).text == "here\n"


def test_tls_minimum_version_is_enforced(keys):
    with serve(keys, tls(keys, min_version="TLS13")) as server:
        context = ssl.create_default_context(cafile=keys.ca_file)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(server.address, timeout=20) as client,
            pytest.raises(ssl.SSLError),
        ):
            context.wrap_socket(client, server_hostname="localhost")
        assert get(server, keys).status_code == 200


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
def test_tls_client_certificate_is_required_as_configured(
    keys, kind, without, with_ours, with_others
):
    more = {} if kind == "NoClientCert" else {"client_ca_file": str(keys.ca_file)}
    certificates = (
        None,
        keys.issue("trusted", "prometheus"),
        keys.issue("foreign", "prometheus", ca=trustme.CA()),
    )
    with serve(keys, tls(keys, client_auth_type=kind, **more)) as server:
        for certificate, accepted in zip(
            certificates, (without, with_ours, with_others), strict=True
        ):
            if accepted:
                assert get(server, keys, cert=certificate).status_code == 200
            else:
                with pytest.raises((requests.exceptions.SSLError, requests.ConnectionError)):
                    get(server, keys, cert=certificate)
        eventually(lambda: server.open == 0, "rejected clients have no open connection")


def test_tls_only_allowed_client_names_are_accepted(keys):
    more = {"client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": str(keys.ca_file)}
    with serve(keys, tls(keys, client_allowed_sans=["prometheus", "10.0.0.1"], **more)) as server:
        for name, status in (("prometheus", 200), ("10.0.0.1", 200), ("grafana", 403)):
            answer = get(server, keys, cert=keys.issue(name, name))
            assert answer.status_code == status
        assert "grafana" in answer.json()["detail"]


def test_tls_rotated_certificate_is_served_without_restart(keys):
    with serve(keys, tls(keys)) as server, requests.Session() as session:
        assert session.get(server.url, verify=keys.ca_file, timeout=20).status_code == 200
        before = serial(server.address)
        keys.server()
        eventually(lambda: serial(server.address) != before, "the new certificate is served")

        assert session.get(server.url, verify=keys.ca_file, timeout=20).status_code == 200
        (keys.folder / "server.crt").write_text("broken")
        time.sleep(1.1)
        assert get(server, keys).status_code == 200  # the last valid one stays


def test_tls_client_without_handshake_is_disconnected(keys):
    with serve(keys, tls(keys), ConnectionLimits(handshake_s=0.5, connections=4)) as server:
        clients = [socket.create_connection(server.address, timeout=20) for _ in range(4)]
        eventually(lambda: server.open == 4, "four silent connections")
        eventually(lambda: server.open == 0, "the connections are closed")
        assert get(server, keys).status_code == 200
        for client in clients:
            client.close()


def test_web_config_headers_are_in_each_response(keys):
    content = {
        "http_server_config": {"headers": {"X-Frame-Options": "deny"}},
        "basic_auth_users": {"ann": hashed()},
    }
    with serve(keys, content) as server:
        for more in ({}, {"auth": ("ann", PASSWORD)}):
            assert requests.get(server.url, timeout=20, **more).headers["X-Frame-Options"] == "deny"


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
        assert (
            requests.get(f"{exporter.url}/metrics", verify=keys.ca_file, timeout=20).status_code
            == 401
        )
        assert "Traceback" not in exporter.log()


def test_tls_chain_is_accepted_by_openssl(keys):
    with serve(keys, tls(keys)) as server:
        address = f"{server.address[0]}:{server.address[1]}"
        done = subprocess.run(
            [
                "openssl",
                "s_client",
                "-connect",
                address,
                "-CAfile",
                keys.ca_file,
                "-verify_return_error",
                "-brief",
            ],
            input=b"",
            capture_output=True,
            timeout=30,
            check=False,
        )
    assert b"Verification: OK" in done.stdout + done.stderr
