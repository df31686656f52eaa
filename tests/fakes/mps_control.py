"""Fake of nvidia-cuda-mps-control: a daemon that serves the `control` socket in the pipe folder.

A process that connects and sends `attach` (as `mps_client()` does in place of CUDA) is a client
until the connection is closed; the first client starts a server process. FAKE_MPS_FAULT: `refuses`
and `silent` (no daemon, with and without a message), `no-clients` (an empty list), `late` (it quits
after three seconds), `deaf` (it never quits).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_FAULT = os.environ.get("FAKE_MPS_FAULT", "")


def install_mps_control(folder: Path) -> Path:
    """Return a folder for PATH with the fake under the real name."""
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P "{__file__}" "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


@contextlib.contextmanager
def mps_client() -> Iterator[bool]:
    """Attach as a CUDA program does: as a client where there is a daemon, else silently without
    it.
    """
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(f"{folder}/control")
        except OSError:
            yield False
            return
        connection.sendall(b"attach\n")
        connection.recv(16)
        yield True


class _Control:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: dict[socket.socket, int] = {}
        self._server = 0

    def serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._listener:
                        connection, _ = self._listener.accept()
                        selector.register(connection, selectors.EVENT_READ)
                    else:
                        assert isinstance(key.fileobj, socket.socket)
                        self._hear(selector, key.fileobj)

    def _hear(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        text = connection.recv(4096).decode()
        if text.strip() == "attach":
            self._attach(connection)
            return
        selector.unregister(connection)
        if text:
            connection.sendall(self._answer(text.strip()).encode())
        self._clients.pop(connection, None)
        connection.close()
        if text.startswith("quit") and _FAULT != "deaf":
            self._quit()

    def _attach(self, connection: socket.socket) -> None:
        pid, _, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if not self._server:
            self._server = os.fork()
            if self._server == 0:
                while True:
                    signal.pause()
        if _FAULT != "no-clients":
            self._clients[connection] = pid
        connection.sendall(b"ok\n")

    def _answer(self, command: str) -> str:
        if command == "get_server_list":
            return f"{self._server}\n" if self._server else ""
        if command == f"get_client_list {self._server}":
            return "".join(f"{pid}\n" for pid in self._clients.values())
        return ""

    def _quit(self) -> None:
        if _FAULT == "late":
            time.sleep(3)
        if self._server:
            os.kill(self._server, signal.SIGKILL)
            os.waitpid(self._server, 0)
        os._exit(0)


def _daemonize(folder: Path) -> None:
    if _FAULT == "refuses":
        sys.exit("Cannot create the control socket: Permission denied")
    if _FAULT == "silent":
        return
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "control"))
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Path(os.environ["CUDA_MPS_LOG_DIRECTORY"], "control.log").write_text("Start\n")
    listener.listen()
    _Control(listener).serve()


def _ask(folder: Path, command: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(folder / "control"))
        except OSError:
            sys.exit("Cannot find MPS control daemon process")
        connection.sendall(command.encode())
        while answer := connection.recv(4096):
            sys.stdout.write(answer.decode())


def main() -> None:
    folder = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    if sys.argv[1:] == ["-d"]:
        _daemonize(folder)
    else:
        for command in sys.stdin:
            _ask(folder, command)


if __name__ == "__main__":
    main()
