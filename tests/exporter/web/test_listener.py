"""Limits on the number and duration of connections."""

import socket
import time

import pytest
import requests

from exporter.config.settings import Settings
from exporter.web.listener import ConnectionLimits
from tests.daemon import eventually
from tests.exporter.web.server_thread import serving

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def settings(tmp_path, **more):
    return Settings(state_path=tmp_path, listen_address="127.0.0.1:0", **more)


def connected(served):
    client = socket.create_connection(served.address, timeout=20)
    client.settimeout(20)
    return client


def drip(client, content):
    for byte in content:
        client.send(bytes([byte]))
        time.sleep(0.01)


def everything(client):
    """Receive until the server closes the connection."""
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


@pytest.fixture
def served(tmp_path, request):
    with serving(settings(tmp_path), getattr(request, "param", None)) as started:
        yield started


def bounds(**given):
    return pytest.mark.parametrize("served", [ConnectionLimits(**given)], indirect=True, ids=[""])


@bounds(headers_s=0.5)
def test_silent_connection_is_closed(served):
    with connected(served) as client:
        assert everything(client) == b""
    eventually(lambda: served.open == 0, "no connection is open")


@bounds(headers_s=0.5)
def test_connection_with_slow_headers_is_closed(served):
    with connected(served) as client, pytest.raises(ConnectionError):
        drip(client, REQUEST[:-4] + b"\r\nX-Slow: " + b"x" * 4_000)


@bounds(headers_s=0.5)
def test_connection_with_slow_second_request_is_closed(served):
    with connected(served) as client:
        client.sendall(REQUEST + REQUEST[:20])
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(REQUEST[20:30])
        assert everything(client) == b""


@bounds(headers_s=1.0, idle_s=5.0)
def test_idle_connection_is_closed_and_active_one_kept(served):
    with connected(served) as client:
        for _ in range(3):
            client.sendall(REQUEST)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(1.1)  # longer than the header limit, which starts with the next byte
        assert everything(client) == b""


@bounds(unread_s=0.5)
def test_connection_that_does_not_read_is_closed(served):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(served.address)
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: served.open == 1, "it is served")
        eventually(lambda: served.open == 0, "it is cut off")


@bounds(connections=8)
def test_connection_above_the_limit_gets_503(served):
    clients = [connected(served) for _ in range(8)]
    eventually(lambda: served.open == 8, "all of them are open")
    with connected(served) as one_more:
        assert everything(one_more).startswith(b"HTTP/1.1 503 ")
    for client in clients:
        client.close()
    eventually(lambda: served.open == 0, "all of them are closed")

    assert requests.get(served.url, timeout=20).text == "here\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 9_000 + b"\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 100 + b"\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 50 + b"\r\n", b"200"),
    ],
)
def test_request_line_and_headers_are_limited(served, head, status, caplog):
    with connected(served) as client:
        client.sendall(head)
        assert client.recv(65536).split()[1] == status
    assert caplog.text == ""
