"""API server and kubelet of one node over HTTPS: pods and ResourceSlices, for callers with a token
and its rights.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

TOKEN = "ey.service.account"
NODE = "gpu-7"


def resource_slice(
    pool: str, *devices: dict[str, Any], driver: str = "gpu.nvidia.com", generation: int = 1
) -> Any:
    """Return a ResourceSlice of resource.k8s.io/v1 as NVIDIA's driver publishes it."""
    return {
        "metadata": {"name": f"{pool}-{driver}-x7k2p"},
        "spec": {
            "driver": driver,
            "nodeName": pool,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def slice_device(name: str, **strings: str) -> dict[str, Any]:
    """Return a device with string attributes, such as `uuid`, and some of other types."""
    other = {"cudaComputeCapability": {"version": "9.0.0"}, "index": {"int": 0}}
    attributes = {key: {"string": value} for key, value in strings.items()} | other
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": "141Gi"}}}


def pod_object(uid: str, namespace: str, name: str, **status: Any) -> dict[str, Any]:
    """Return a Pod; its metadata can be extended."""
    return {
        "metadata": {"uid": uid, "namespace": namespace, "name": name},
        "spec": {"nodeName": NODE},
        "status": {"phase": "Running", **status},
    }


def container_status(name: str, exit_code: int | None = None, reason: str = "") -> dict[str, Any]:
    """Return the status of a container that runs, or that ended with the code."""
    if exit_code is None:
        return {
            "name": name,
            "state": {"running": {"startedAt": "2026-11-23T10:00:00Z"}},
            "lastState": {},
        }
    ended = {"exitCode": exit_code, "reason": reason or ("Error" if exit_code else "Completed")}
    return {"name": name, "state": {"terminated": ended}, "lastState": {}}


@dataclass
class KubernetesApi:
    """Server with objects. `versions`: served versions of resource.k8s.io; `denied`: resources that
    are forbidden.
    """

    folder: Path
    pods: list[dict[str, Any]] = field(default_factory=list)
    slices: list[Any] = field(default_factory=list)
    versions: tuple[str, ...] = ("v1", "v1beta2", "v1beta1")
    denied: set[str] = field(default_factory=set)
    body: bytes | None = None
    delay_s: float = 0.0
    paths: list[str] = field(default_factory=list)
    url: str = ""
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def credentials(self) -> Path:
        """Folder of a service account, with the token and the certificate of the cluster's CA."""
        return self.folder

    def respond(self, path: str, token: str | None) -> tuple[int, bytes]:
        self.paths.append(path)
        parts = urlsplit(path)
        selectors = parse_qs(parts.query).get("fieldSelector", [""])[0].split(",")
        wanted = dict(selector.split("=", 1) for selector in selectors if selector)
        self.released.wait(self.delay_s)
        if token != f"Bearer {TOKEN}":
            return 401, b'{"kind": "Status", "reason": "Unauthorized"}'
        *_, resource = parts.path.split("/")
        if resource in self.denied:
            return 403, b'{"kind": "Status", "reason": "Forbidden"}'
        if self.body is not None:
            return 200, self.body
        if parts.path in ("/pods", "/api/v1/pods"):
            items = [
                p for p in self.pods if p["spec"]["nodeName"] == wanted.get("spec.nodeName", NODE)
            ]
            return 200, json.dumps({"kind": "PodList", "apiVersion": "v1", "items": items}).encode()
        for version in self.versions:
            if parts.path == f"/apis/resource.k8s.io/{version}/resourceslices":
                return 200, json.dumps(
                    {"kind": "ResourceSliceList", "items": self._slices(wanted, version)}
                ).encode()
        return 404, b"404 page not found"

    def _slices(self, wanted: dict[str, str], version: str) -> list[Any]:
        chosen = [
            one
            for one in self.slices
            if all(one["spec"][key.removeprefix("spec.")] == v for key, v in wanted.items())
        ]
        return [_as_beta1(one) for one in chosen] if version == "v1beta1" else chosen


def _as_beta1(one: Any) -> Any:
    devices = [
        {
            "name": device["name"],
            "basic": {key: value for key, value in device.items() if key != "name"},
        }
        for device in one["spec"]["devices"]
    ]
    return {**one, "spec": {**one["spec"], "devices": devices}}


@contextmanager
def kubernetes_api(
    folder: Path, *, names: tuple[str, ...] = ("127.0.0.1",)
) -> Iterator[KubernetesApi]:
    """Serve HTTPS on loopback with a certificate for `names`, and write the credentials into the
    folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))
    (folder / "token").write_text(TOKEN + "\n")
    api = KubernetesApi(folder)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            status, body = api.respond(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the base class
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore clients that refuse the certificate or disconnect."""

    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    api.url = f"https://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        api.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
