"""Servers on loopback: a node's /metrics, and the query API over a history file, with the faults of real ones."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from exporter.contract.history import QueryError, open_read_only, parse_query, query_response, select_series


@dataclass
class Reply:
    status: int
    body: bytes
    content_type: str = "application/json"


@dataclass
class Asked:
    """What the server was asked: one entry a request."""

    paths: list[str] = field(default_factory=list)
    parameters: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


Respond = Callable[[str, dict[str, str]], Reply]


@contextlib.contextmanager
def serving(respond: Respond) -> Iterator[tuple[str, Asked]]:
    """`respond` gets path and parameters of each GET or POST; yields host:port and what was asked."""
    asked = Asked()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            form = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            parameters = {name: values[-1] for name, values in parse_qs(parts.query or form).items()}
            asked.paths.append(parts.path)
            asked.parameters.append(parameters)
            asked.headers.append({name.lower(): value for name, value in self.headers.items()})
            reply = respond(parts.path, parameters)
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(reply.body)

        do_POST = do_GET  # noqa: N815  # so does http.server call it

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def history_api(path: Path, prefix: str = "", *, spoil: Callable[[dict], None] | None = None) -> Respond:
    """Prometheus's JSON from a history file; `spoil` may change an answer."""

    def respond(asked_path, parameters):
        if asked_path != f"{prefix}/api/v1/query":
            return Reply(404, b"<h1>404</h1>", "text/html")
        connection = open_read_only(path)
        try:
            body = query_response(
                select_series(connection, parse_query(parameters["query"]), float(parameters["time"]))
            )
        except QueryError as error:
            return error_reply(400, "bad_data", str(error))
        finally:
            connection.close()
        if spoil:
            spoil(body)
        return Reply(200, json.dumps(body).encode())

    return respond


def error_reply(status: int, kind: str, text: str) -> Reply:
    return Reply(status, json.dumps({"status": "error", "errorType": kind, "error": text}).encode())
