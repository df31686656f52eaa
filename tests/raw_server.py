"""Server that answers each connection with the same bytes."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator

CLOSED = b""
"""Answer of the exporter with TLS to a request without it: it closes the connection."""
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"
"""Answer of other servers with TLS: the alert `protocol version`."""
NEEDS_HTTPS = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
"""Answer of servers with TLS in Go."""


@contextlib.contextmanager
def raw_server(answer: bytes) -> Iterator[str]:
    """Yield HOST:PORT of the server."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                self.request.recv(65_536)
                self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
