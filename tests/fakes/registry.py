"""Image registry on loopback that serves one image under any name, from a folder in OCI layout."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path


class _Handler(http.server.BaseHTTPRequestHandler):
    folder: Path

    def do_HEAD(self) -> None:
        self._answer(with_content=False)

    def do_GET(self) -> None:
        self._answer(with_content=True)

    def _answer(self, *, with_content: bool) -> None:
        kind, digest = self._requested()
        path = self.folder / "blobs" / digest.replace(":", "/")
        content = path.read_bytes() if digest and path.is_file() else b"{}"
        self.send_response(200 if digest == "" or path.is_file() else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_content:
            self.wfile.write(content)

    def _requested(self) -> tuple[str, str]:
        """Return content type and digest; "" for a request to the registry itself."""
        *_, what, reference = self.path.split("/")
        if what == "blobs":
            return "application/octet-stream", reference
        if what != "manifests":
            return "application/json", ""
        (manifest,) = json.loads((self.folder / "index.json").read_text())["manifests"]
        return str(manifest["mediaType"]), str(manifest["digest"])

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def registry_server(folder: Path) -> Iterator[str]:
    """Address as `host:port`."""
    handler = type("Handler", (_Handler,), {"folder": folder})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
