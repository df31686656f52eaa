"""HTTPS client of the Kubernetes API server and of the kubelet, with the credentials of a service
account.
"""

from __future__ import annotations

import http.client
import os
import ssl
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from wattline_exporter.sensors.readings import SourceError

CREDENTIALS = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Folder in which the kubelet puts `token` and `ca.crt` of the pod's service account."""
FROM_CACHE = "&resourceVersion=0"
"""Parameter of a list that the API server answers from memory, by an index, instead of reading all
objects in etcd.
"""
TIMEOUT_S = 3.0
MAX_BYTES = 64 << 20
_CHUNK = 1 << 16


class NotFoundError(SourceError):
    """The server has no such resource, as an API version that it does not serve."""


def api_server_url(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the URL of the API server as a pod's environment has it, or None outside of a pod."""
    host = environment.get("KUBERNETES_SERVICE_HOST")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        return None
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class KubernetesClient:
    """Client that follows no redirect and uses no proxy: it sends its token only to the server of
    the URL.

    The token is read for each request, since the kubelet replaces it, and is sent over HTTPS only.
    """

    def __init__(self, credentials: Path = CREDENTIALS) -> None:
        self._credentials = credentials

    def get(self, url: str, remedy: str) -> bytes:
        """Return the body. Raises SourceError after TIMEOUT_S, with `remedy` where the server
        refuses the request.
        """
        parts = urlsplit(url)
        deadline_s = time.monotonic() + TIMEOUT_S
        try:
            connection = self._connect(parts.scheme, parts.hostname or "", parts.port)
            try:
                path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
                connection.request("GET", path, headers=self._headers(parts.scheme))
                with connection.getresponse() as response:
                    body = _read(response, deadline_s)
            finally:
                connection.close()
        except ssl.SSLCertVerificationError as error:
            ca = self._credentials / "ca.crt"
            raise SourceError(
                f"cannot verify the certificate of {url}: {error.verify_message}",
                f"use a server whose certificate {ca} signs; of kubelets with self-signed ones: "
                "--kubernetes.pods=api",
            ) from error
        except (OSError, http.client.HTTPException) as error:
            cause = (
                "no response in time"
                if isinstance(error, TimeoutError)
                else str(error) or type(error).__name__
            )
            raise SourceError(
                f"cannot read {url}: {cause}",
                "check the address and the network policy of the exporter",
            ) from error
        if response.status == HTTPStatus.NOT_FOUND:
            raise NotFoundError(f"cannot read {url}: 404 Not Found", remedy)
        if response.status != HTTPStatus.OK:
            raise SourceError(f"cannot read {url}: {response.status} {response.reason}", remedy)
        return body

    def _connect(self, scheme: str, host: str, port: int | None) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        ca = self._credentials / "ca.crt"
        context = ssl.create_default_context(cafile=str(ca) if ca.exists() else None)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)

    def _headers(self, scheme: str) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        token = self._credentials / "token"
        if scheme == "https" and token.exists():
            headers["Authorization"] = f"Bearer {token.read_text().strip()}"
        return headers


def _read(response: http.client.HTTPResponse, deadline_s: float) -> bytes:
    body = bytearray()
    while chunk := response.read1(_CHUNK):
        body += chunk
        if time.monotonic() > deadline_s:
            raise TimeoutError
        if len(body) > MAX_BYTES:
            raise OSError(f"the response is larger than {MAX_BYTES >> 20} MiB")
    return bytes(body)
