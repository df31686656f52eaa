"""HTTP servers on loopback: metrics pages, and the query API over a history file."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from wattline.contract.history import (
    QueryError,
    open_read_only,
    parse_query,
    query_response,
    select_series,
)


@dataclass
class Reply:
    status: int
    body: bytes
    content_type: str = "application/json"


@dataclass
class ReceivedRequests:
    """Path, parameters and headers of each received request."""

    paths: list[str] = field(default_factory=list)
    parameters: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


Responder = Callable[[str, dict[str, str]], Reply]


@contextlib.contextmanager
def http_server(respond: Responder) -> Iterator[tuple[str, ReceivedRequests]]:
    """Start a server that answers GET and POST by `respond(path, parameters)`; yield host:port and
    the requests.
    """
    requests = ReceivedRequests()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            form = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            parameters = {
                name: values[-1] for name, values in parse_qs(parts.query or form).items()
            }
            requests.paths.append(parts.path)
            requests.parameters.append(parameters)
            requests.headers.append({name.lower(): value for name, value in self.headers.items()})
            reply = respond(parts.path, parameters)
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(reply.body)

        do_POST = do_GET  # noqa: N815  # name defined by http.server

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def history_api(
    history: Path, prefix: str = "", *, spoil: Callable[[dict], None] | None = None
) -> Responder:
    """Prometheus query API over a history file; `spoil` may change a response."""

    def respond(path, parameters):
        if path != f"{prefix}/api/v1/query":
            return Reply(404, b"<h1>404</h1>", "text/html")
        connection = open_read_only(history)
        try:
            body = query_response(
                select_series(
                    connection, parse_query(parameters["query"]), float(parameters["time"])
                )
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
