"""A loopback proxy with configurable faults, and the samples of a server."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import struct
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from exporter.contract.history import open_read_only

Found = dict[tuple[tuple[str, str], ...], list[tuple[int, float]]]
"""Samples (milliseconds, value) of each series by its sorted labels."""


@dataclass
class Proxy:
    """Proxy with one of `faults` per request: `away`, `cut` (the response is lost), `garbage`, `page`, or a status.

    `always` applies after the last fault; a body for which `refuses` is true gets status 400.
    """

    server: str
    url: str = ""
    faults: list[str | int] = field(default_factory=list)
    always: str | int = "pass"
    closes: str = ""
    """Close after each response, `said` in a header or `silently`."""
    most_bytes: int = 2_000_000
    """Size above which the connection is closed without reading the body."""
    bytes_per_s: float = 0.0
    """Rate at which bodies are read; 0 is unlimited."""
    changes: Callable[[bytes], bytes] = bytes
    """Function applied to a body before it is forwarded."""
    refuses: Callable[[bytes], bool] = lambda _: False
    retry_after: str = ""
    name: str = ""
    """Host name in responses, as of VictoriaMetrics."""
    seen: list[str | int] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one write per response: a second one would wait for an acknowledgement
    made: Proxy

    def do_POST(self):
        made, size = self.made, int(self.headers["Content-Length"])
        if size > made.most_bytes:
            made.sizes.append(size)
            self.hang_up()
            return
        body = self.rfile.read(size)
        fault = made.faults.pop(0) if made.faults else made.always
        made.seen.append(fault)
        made.sizes.append(len(body))
        if made.bytes_per_s:
            time.sleep(len(body) / made.bytes_per_s)
        made.headers.append({name.lower(): value for name, value in self.headers.items()})
        if isinstance(fault, int):
            self.reply(fault, f"request {10_000 + len(made.seen)}; so says the test".encode())
        elif fault == "page":
            self.reply(200, b"<html>Please log in</html>", "text/html")
        elif fault in ("away", "garbage"):
            self.wfile.write(b"\x00\x16 none of HTTP \xff\r\n\r\n" if fault == "garbage" else b"")
            self.hang_up()
        elif made.refuses(body):
            self.reply(400, b"out of order sample\n")
        else:
            status, text = forward(f"{made.server}{self.path}", made.changes(body), dict(self.headers))
            if fault == "cut":
                self.hang_up()
            else:
                self.reply(status, text)

    def hang_up(self):
        """Reset the connection, like a killed process."""
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()

    def reply(self, status, text, kind="text/plain"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(text)))
        if self.made.retry_after and status in (429, 503):
            self.send_header("Retry-After", self.made.retry_after)
        if self.made.name:
            self.send_header("X-Server-Hostname", self.made.name)
        if self.made.closes == "said":
            self.send_header("Connection", "close")
        self.end_headers()
        if status != 204:
            self.wfile.write(text)
        if self.made.closes:
            self.close_connection = True

    def finish(self):
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def log_message(self, *arguments):
        pass


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


@contextlib.contextmanager
def proxy(server: str) -> Iterator[Proxy]:
    made = Proxy(server)
    listening = _Quiet(("127.0.0.1", 0), type("Handler", (_Handler,), {"made": made}))
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.url = f"http://127.0.0.1:{listening.server_port}"
    try:
        yield made
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def forward(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    left_out = ("host", "connection", "content-length", "accept-encoding")
    kept = {name: value for name, value in headers.items() if name.lower() not in left_out}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, kept), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 502, b"the server behind it is gone"


def lines(body: bytes) -> list[str]:
    """Return the lines of a body for VictoriaMetrics."""
    return gzip.decompress(body).decode().splitlines()


def on_server(server: str, instance: str, at_s: float, window_s: float = 7_200) -> Found:
    """Return the server's samples of the instance, without the labels added by pushing."""
    with contextlib.suppress(urllib.error.HTTPError):  # otherwise VictoriaMetrics shows it after some seconds
        urllib.request.urlopen(f"{server}/internal/force_flush").close()
    selector = f'{{__name__=~"wattline_.*",instance="{instance}"}}[{window_s:.0f}s]'
    asked = urllib.parse.urlencode({"query": selector, "time": f"{at_s:.3f}", "nocache": "1"})
    with urllib.request.urlopen(f"{server}/api/v1/query?{asked}") as answer:
        result = json.load(answer)["data"]["result"]
    found: Found = {}
    for series in result:
        own = {name: value for name, value in series["metric"].items() if name not in ("instance", "job")}
        samples = [(round(float(t) * 1_000), float(value)) for t, value in series["values"]]
        assert found.setdefault(tuple(sorted(own.items())), samples) is samples
    return found


def in_file(folder: Path) -> Found:
    """Return the samples of the history without empty labels."""
    connection = open_read_only(folder / "history.sqlite")
    try:
        series = {
            number: tuple(sorted({"__name__": name, **{k: v for k, v in json.loads(text).items() if v}}.items()))
            for number, name, text in connection.execute("SELECT id, name, labels FROM series")
        }
        found: Found = {}
        for t_ms, number, value in connection.execute("SELECT t_ms, series_id, value FROM samples ORDER BY t_ms"):
            found.setdefault(series[number], []).append((t_ms, value))
        return found
    finally:
        connection.close()
