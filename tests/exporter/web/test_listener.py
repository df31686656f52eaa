"""Limits on the number and duration of connections."""

import socket
import time

import pytest
import requests

from tests.exporter.web.server_thread import run_server
from tests.polling import eventually
from wattline_exporter.config.settings import Settings
from wattline_exporter.web.listener import ConnectionLimits

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def settings(tmp_path, **more):
    return Settings(state_path=tmp_path, listen_address="127.0.0.1:0", **more)


def connect(server):
    client = socket.create_connection(server.address, timeout=20)
    client.settimeout(20)
    return client


def send_slowly(client, content):
    for byte in content:
        client.send(bytes([byte]))
        time.sleep(0.01)


def receive_all(client):
    """Receive until the server closes the connection."""
    received = b""
    try:
        while part := client.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


@pytest.fixture
def server(tmp_path, request):
    with run_server(settings(tmp_path), getattr(request, "param", None)) as server_thread:
        yield server_thread


def bounds(**given):
    return pytest.mark.parametrize("server", [ConnectionLimits(**given)], indirect=True, ids=[""])


@bounds(headers_s=0.5)
def test_silent_connection_is_closed(server):
    with connect(server) as client:
        assert receive_all(client) == b""
    eventually(lambda: server.open == 0, "no connection is open")


@bounds(headers_s=0.5)
def test_connection_with_slow_headers_is_closed(server):
    with connect(server) as client, pytest.raises(ConnectionError):
        send_slowly(client, REQUEST[:-4] + b"\r\nX-Slow: " + b"x" * 4_000)


@bounds(headers_s=0.5)
def test_connection_with_slow_second_request_is_closed(server):
    with connect(server) as client:
        client.sendall(REQUEST + REQUEST[:20])
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(REQUEST[20:30])
        assert receive_all(client) == b""


@bounds(headers_s=1.0, idle_s=5.0)
def test_idle_connection_is_closed_and_active_one_kept(server):
    with connect(server) as client:
        for _ in range(3):
            client.sendall(REQUEST)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(1.1)  # longer than the header limit, which starts with the next byte
        assert receive_all(client) == b""


@bounds(unread_s=0.5)
def test_connection_that_does_not_read_is_closed(server):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(server.address)
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: server.open == 1, "an open connection")
        eventually(lambda: server.open == 0, "the connection is closed")


@bounds(connections=8)
def test_connection_above_the_limit_gets_503(server):
    clients = [connect(server) for _ in range(8)]
    eventually(lambda: server.open == 8, "all of them are open")
    with connect(server) as extra_client:
        assert receive_all(extra_client).startswith(b"HTTP/1.1 503 ")
    for client in clients:
        client.close()
    eventually(lambda: server.open == 0, "all of them are closed")

    assert requests.get(server.url, timeout=20).text == "here\n"


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
def test_request_line_and_headers_are_limited(server, head, status, caplog):
    with connect(server) as client:
        client.sendall(head)
        assert client.recv(65536).split()[1] == status
    assert caplog.text == ""
