"""Unix socket of the run API, and settings checked before listening."""

import asyncio
import os
import socket
import stat
import subprocess
import sys

import pytest
import requests

from tests.exporter.web.server_thread import run_server
from wattline_exporter.config.settings import Settings
from wattline_exporter.config.values import OperationError, UsageError
from wattline_exporter.web.server import UnixAddress, WebServer, listen_unix, unix_address


def settings(tmp_path, **more):
    return Settings(state_path=tmp_path, listen_address="127.0.0.1:0", **more)


def test_api_socket_has_its_mode_and_accepts_any_host(tmp_path):
    path = tmp_path / "api.sock"
    given = settings(
        tmp_path, api_socket=path, api_socket_mode="0600", api_socket_group=str(os.getgid())
    )
    with run_server(given) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_gid == os.getgid()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(
                b"POST /api/v1/runs HTTP/1.1\r\nHost: any.thing\r\nContent-Length: 2\r\n\r\nhi"
            )
            assert client.recv(65536).endswith(b"hi")
        refused = requests.post(f"{server.url}/api/v1/runs", data="hi", timeout=20)
        assert refused.status_code == 403
        assert f"WATTLINE_EXPORTER=unix://{path}" in refused.json()["detail"]
        assert requests.get(f"{server.url}/api/v1/runs", timeout=20).status_code == 200
    assert not path.exists()


def test_api_socket_stale_is_replaced_and_live_is_kept(tmp_path):
    path = tmp_path / "api.sock"
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen()"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)
    assert path.is_socket()

    with listen_unix(UnixAddress(path, 0o660, None)):
        with pytest.raises(OperationError, match="a running exporter listens there"):
            listen_unix(UnixAddress(path, 0o660, None))
        assert path.is_socket()


def test_api_socket_other_file_is_not_removed(tmp_path):
    path = tmp_path / "api.sock"
    path.write_text("mine")
    with pytest.raises(OperationError, match="not a socket"):
        listen_unix(UnixAddress(path, 0o660, None))
    assert path.read_text() == "mine"


def test_api_socket_missing_folder_is_one_line(tmp_path):
    with pytest.raises(OperationError, match="create the folder"):
        listen_unix(UnixAddress(tmp_path / "none" / "api.sock", 0o660, None))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"api_socket": "/run/" + "x" * 120}, "the limit is 107"),
        (
            {"api_socket": "/run/s", "api_socket_mode": "rw"},
            "octal file mode such as 0660, not 'rw'",
        ),
        ({"api_socket": "/run/s", "api_socket_mode": "7777"}, "0660"),
        ({"api_socket": "/run/s", "api_socket_mode": ""}, "0660"),
        (
            {"api_socket": "/run/s", "api_socket_group": "no-such-group"},
            "unknown group 'no-such-group'",
        ),
    ],
)
def test_api_socket_invalid_setting_is_one_line(tmp_path, more, words):
    with pytest.raises(UsageError, match=words) as refused:
        unix_address(settings(tmp_path, **more))
    assert "\n" not in str(refused.value)


def test_web_server_invalid_configuration_is_found_before_listening(tmp_path):
    async def open_socket():
        WebServer(settings(tmp_path, web_config=tmp_path / "none.yml"))

    with pytest.raises(UsageError, match=r"none.yml: cannot read the file: No such file"):
        asyncio.run(open_socket())
