"""Test CA, its certificates, and web configuration files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import bcrypt
import trustme
import yaml

PASSWORD = "correct horse battery staple"
TOKEN = "0123456789abcdef0123456789abcdef"


@dataclass
class Keys:
    """`ca` signs the server and the clients of `folder`."""

    folder: Path
    ca: trustme.CA

    def server(self, name: str = "server", *names: str) -> tuple[Path, Path]:
        return self.issue(name, *(names or ("localhost", "127.0.0.1")))

    def issue(self, name: str, *names: str, ca: trustme.CA | None = None) -> tuple[Path, Path]:
        """Write a chain and its key, replacing existing files atomically like a rotation tool."""
        certificate = (ca or self.ca).issue_cert(*names)
        chain, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        _replace(key, certificate.private_key_pem.bytes())
        _replace(chain, b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
        return chain, key

    @property
    def ca_file(self) -> Path:
        path = self.folder / "ca.crt"
        path.write_bytes(self.ca.cert_pem.bytes())
        return path


def make_keys(folder: Path) -> Keys:
    return Keys(folder, trustme.CA())


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.rename(path)


def hashed(password: str = PASSWORD, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


def web_config(folder: Path, content: object) -> Path:
    path = folder / "web.yml"
    _replace(path, yaml.safe_dump(content).encode())
    return path


def serial(address: tuple[str, int]) -> str:
    """Return the served certificate as PEM text."""
    return ssl.get_server_certificate(address, timeout=10)
