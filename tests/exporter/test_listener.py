"""How long a connection may say nothing, how many there may be, and where they come in."""

import asyncio
import os
import socket
import stat
import subprocess
import sys
import time

import pytest
import requests

from exporter.settings import OperationError, Settings, UsageError
from exporter.web.listener import Bounds
from exporter.web.server import WebServer
from exporter.web.sockets import UnixAddress, listen_unix, unix_address
from tests.daemon import eventually
from tests.exporter.web_loop import serving

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
    """What comes until the other side is gone."""
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
    return pytest.mark.parametrize("served", [Bounds(**given)], indirect=True, ids=[""])


@bounds(headers_s=0.5)
def test_who_says_nothing_is_cut_off(served):
    with connected(served) as client:
        assert everything(client) == b""
    eventually(lambda: served.open == 0, "no connection is open")


@bounds(headers_s=0.5)
def test_who_sends_headers_a_byte_at_a_time_is_cut_off(served):
    with connected(served) as client, pytest.raises(ConnectionError):
        drip(client, REQUEST[:-4] + b"\r\nX-Slow: " + b"x" * 4_000)


@bounds(headers_s=0.5)
def test_who_sends_a_second_request_slowly_is_cut_off_as_well(served):
    with connected(served) as client:
        client.sendall(REQUEST + REQUEST[:20])
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(REQUEST[20:30])
        assert everything(client) == b""


@bounds(headers_s=1.0, idle_s=5.0)
def test_a_connection_that_idles_is_closed_and_one_that_works_is_kept(served):
    with connected(served) as client:
        for _ in range(3):
            client.sendall(REQUEST)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            time.sleep(1.1)  # longer than headers may take, which only begin now
        assert everything(client) == b""


@bounds(answer_s=0.5)
def test_who_does_not_read_the_answer_is_cut_off(served):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(served.address)
        client.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: served.open == 1, "it is served")
        eventually(lambda: served.open == 0, "it is cut off")


@bounds(connections=8)
def test_the_connection_after_the_last_one_is_turned_away_and_room_is_made_again(served):
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
def test_lines_and_headers_are_bounded(served, head, status, caplog):
    with connected(served) as client:
        client.sendall(head)
        assert client.recv(65536).split()[1] == status
    assert caplog.text == ""


# -- the Unix socket


def test_runs_come_by_the_socket_with_its_mode_and_under_any_name(tmp_path):
    path = tmp_path / "api.sock"
    given = settings(tmp_path, api_socket=path, api_socket_mode="0600", api_socket_group=str(os.getgid()))
    with serving(given) as served:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_gid == os.getgid()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"POST /api/v1/runs HTTP/1.1\r\nHost: any.thing\r\nContent-Length: 2\r\n\r\nhi")
            assert client.recv(65536).endswith(b"hi")
        refused = requests.post(f"{served.url}/api/v1/runs", data="hi", timeout=20)
        assert refused.status_code == 403
        assert f"WATTLINE_EXPORTER=unix://{path}" in refused.json()["detail"]
        assert requests.get(f"{served.url}/api/v1/runs", timeout=20).status_code == 200
    assert not path.exists()


def test_the_socket_of_a_dead_exporter_is_replaced_and_that_of_a_live_one_is_not(tmp_path):
    path = tmp_path / "api.sock"
    program = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert path.is_socket()

    with listen_unix(UnixAddress(path, 0o660, None)):
        with pytest.raises(OperationError, match="a running exporter serves there"):
            listen_unix(UnixAddress(path, 0o660, None))
        assert path.is_socket()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "api.sock"
    path.write_text("mine")
    with pytest.raises(OperationError, match="no socket"):
        listen_unix(UnixAddress(path, 0o660, None))
    assert path.read_text() == "mine"


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(OperationError, match="make the folder"):
        listen_unix(UnixAddress(tmp_path / "none" / "api.sock", 0o660, None))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"api_socket": "/run/" + "x" * 120}, "at most 107 bytes"),
        ({"api_socket": "/run/s", "api_socket_mode": "rw"}, "octal file mode such as 0660, not 'rw'"),
        ({"api_socket": "/run/s", "api_socket_mode": "7777"}, "0660"),
        ({"api_socket": "/run/s", "api_socket_mode": ""}, "0660"),
        ({"api_socket": "/run/s", "api_socket_group": "no-such-group"}, "no group 'no-such-group'"),
    ],
)
def test_a_socket_that_cannot_be_is_one_line(tmp_path, more, words):
    with pytest.raises(UsageError, match=words) as refused:
        unix_address(settings(tmp_path, **more))
    assert "\n" not in str(refused.value)


def test_what_cannot_be_is_known_before_anything_listens(tmp_path):
    async def made():
        WebServer(settings(tmp_path, web_config=tmp_path / "none.yml"))

    with pytest.raises(UsageError, match=r"none.yml: cannot be read: No such file"):
        asyncio.run(made())
