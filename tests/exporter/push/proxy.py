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

from wattline.contract.history import open_read_only

Found = dict[tuple[tuple[str, str], ...], list[tuple[int, float]]]
"""Samples (milliseconds, value) of each series by its sorted labels."""


@dataclass
class Proxy:
    """Proxy with one of `faults` per request: `away`, `cut` (the response is lost), `garbage`,
    `page`, or a status.

    `always` applies after the last fault; a body for which `refuses` is true gets status 400.
    """

    server: str
    url: str = ""
    faults: list[str | int] = field(default_factory=list)
    always: str | int = "pass"
    closes: str = ""
    """Close after each response, `announced` in a header or `silently`."""
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
    faults_applied: list[str | int] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one write per response: a second one would wait for an acknowledgement
    proxy_state: Proxy

    def do_POST(self):
        proxy_state, size = self.proxy_state, int(self.headers["Content-Length"])
        if size > proxy_state.most_bytes:
            proxy_state.sizes.append(size)
            self.hang_up()
            return
        body = self.rfile.read(size)
        fault = proxy_state.faults.pop(0) if proxy_state.faults else proxy_state.always
        proxy_state.faults_applied.append(fault)
        proxy_state.sizes.append(len(body))
        if proxy_state.bytes_per_s:
            time.sleep(len(body) / proxy_state.bytes_per_s)
        proxy_state.headers.append({name.lower(): value for name, value in self.headers.items()})
        if isinstance(fault, int):
            self.reply(
                fault,
                f"request {10_000 + len(proxy_state.faults_applied)}; so says the test".encode(),
            )
        elif fault == "page":
            self.reply(200, b"<html>Please log in</html>", "text/html")
        elif fault in ("away", "garbage"):
            self.wfile.write(b"\x00\x16 none of HTTP \xff\r\n\r\n" if fault == "garbage" else b"")
            self.hang_up()
        elif proxy_state.refuses(body):
            self.reply(400, b"out of order sample\n")
        else:
            status, text = forward(
                f"{proxy_state.server}{self.path}", proxy_state.changes(body), dict(self.headers)
            )
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
        if self.proxy_state.retry_after and status in (429, 503):
            self.send_header("Retry-After", self.proxy_state.retry_after)
        if self.proxy_state.name:
            self.send_header("X-Server-Hostname", self.proxy_state.name)
        if self.proxy_state.closes == "announced":
            self.send_header("Connection", "close")
        self.end_headers()
        if status != 204:
            self.wfile.write(text)
        if self.proxy_state.closes:
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
    proxy_state = Proxy(server)
    listening = _Quiet(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy_state": proxy_state}))
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    proxy_state.url = f"http://127.0.0.1:{listening.server_port}"
    try:
        yield proxy_state
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def forward(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    left_out = ("host", "connection", "content-length", "accept-encoding")
    forwarded_headers = {
        name: value for name, value in headers.items() if name.lower() not in left_out
    }
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, forwarded_headers), timeout=30
        ) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 502, b"the server behind it is gone"


def lines(body: bytes) -> list[str]:
    """Return the lines of a body for VictoriaMetrics."""
    return gzip.decompress(body).decode().splitlines()


def server_samples(server: str, instance: str, at_s: float, window_s: float = 7_200) -> Found:
    """Return the server's samples of the instance, without the labels added by pushing."""
    with contextlib.suppress(
        urllib.error.HTTPError
    ):  # otherwise VictoriaMetrics shows it after some seconds
        urllib.request.urlopen(f"{server}/internal/force_flush").close()
    selector = f'{{__name__=~"wattline_.*",instance="{instance}"}}[{window_s:.0f}s]'
    parameters = urllib.parse.urlencode({"query": selector, "time": f"{at_s:.3f}", "nocache": "1"})
    with urllib.request.urlopen(f"{server}/api/v1/query?{parameters}") as response:
        result = json.load(response)["data"]["result"]
    samples_by_series: Found = {}
    for series in result:
        own = {
            name: value
            for name, value in series["metric"].items()
            if name not in ("instance", "job")
        }
        samples = [(round(float(t) * 1_000), float(value)) for t, value in series["values"]]
        assert samples_by_series.setdefault(tuple(sorted(own.items())), samples) is samples
    return samples_by_series


def stored_samples(folder: Path) -> Found:
    """Return the samples of the history without empty labels."""
    connection = open_read_only(folder / "history.sqlite")
    try:
        series = {
            number: tuple(
                sorted(
                    {"__name__": name, **{k: v for k, v in json.loads(text).items() if v}}.items()
                )
            )
            for number, name, text in connection.execute("SELECT id, name, labels FROM series")
        }
        samples_by_series: Found = {}
        for t_ms, number, value in connection.execute(
            "SELECT t_ms, series_id, value FROM samples ORDER BY t_ms"
        ):
            samples_by_series.setdefault(series[number], []).append((t_ms, value))
        return samples_by_series
    finally:
        connection.close()
