"""TLS by the web-config file: one SSLContext a configuration, and one that stands for the newest of them."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from exporter.web.reloaded import FileError

ClientAuth = Literal[
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "RequireClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]
_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,  # it is not verified, so whether one comes decides nothing
    "RequireAnyClientCert": ssl.CERT_REQUIRED,  # OpenSSL in Python requires none that it does not verify
    "RequireClientCert": ssl.CERT_REQUIRED,  # an older name of the same
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_MOST_PEM = 1024 * 1024
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# Go's names of the suites that crypto/tls counts as secure, and OpenSSL's: https://pkg.go.dev/crypto/tls#pkg-constants
_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
_TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


class TlsConfig(BaseModel):
    """`tls_server_config`, as Prometheus's exporter-toolkit has it; paths are absolute once read."""

    model_config = ConfigDict(extra="forbid")

    cert_file: Path
    key_file: Path
    client_auth_type: ClientAuth = "NoClientCert"
    client_ca_file: Path | None = None
    client_allowed_sans: list[str] | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: list[str] = []
    curve_preferences: list[str] | None = None
    prefer_server_cipher_suites: bool | None = None

    @property
    def verify(self) -> ssl.VerifyMode:
        return _VERIFY[self.client_auth_type]

    @property
    def files(self) -> list[Path]:
        return [self.cert_file, self.key_file, *([self.client_ca_file] if self.client_ca_file else [])]


def make_context(config: TlsConfig) -> ssl.SSLContext:
    """Raises FileError whose text begins with the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _version("min_version", config.min_version)
    context.maximum_version = _version("max_version", config.max_version)
    if context.minimum_version > context.maximum_version:
        raise FileError("min_version is above max_version; swap them")
    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    except ssl.SSLError as error:
        raise FileError(_pair(config, error)) from error
    except OSError as error:
        raise FileError(_unread({"cert_file": config.cert_file, "key_file": config.key_file}, error)) from error
    _clients(context, config)
    if config.cipher_suites:
        context.set_ciphers(_ciphers(config.cipher_suites))
    return context


def _no_password() -> str:
    raise FileError("key_file is encrypted and no one can type its password; store it decrypted (openssl pkey)")


def _version(key: str, name: str) -> ssl.TLSVersion:
    if name not in _VERSIONS:
        raise FileError(f"{key}: {name[:40]!r} is not served (TLS 1.0 and 1.1 are broken); it is TLS12 or TLS13")
    return _VERSIONS[name]


def _pair(config: TlsConfig, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"key_file {config.key_file} is not the key of cert_file {config.cert_file}; write both anew"
    if not _is_pem(config.cert_file, b"CERTIFICATE"):
        return f"cert_file {config.cert_file} holds no PEM certificate; one begins with -----BEGIN CERTIFICATE-----"
    if not _is_pem(config.key_file, b"PRIVATE KEY"):
        return f"key_file {config.key_file} holds no PEM key; one begins with -----BEGIN PRIVATE KEY-----"
    reason = f" ({error.reason})" if error.reason else ""
    return (
        f"cert_file {config.cert_file} and key_file {config.key_file} are no sound PEM chain and key{reason}; "
        "write both anew"
    )


def _is_pem(path: Path, kind: bytes) -> bool:
    try:
        with path.open("rb") as opened:
            return re.search(rb"-----BEGIN [A-Z ]*" + kind + b"-----", opened.read(_MOST_PEM)) is not None
    except OSError:
        return False


def _unread(files: dict[str, Path], error: OSError) -> str:
    """OpenSSL does not say which of the files, by their keys, it could not open."""
    for key, path in files.items():
        try:
            with path.open("rb") as opened:
                opened.read(1)
        except OSError as cause:
            return f"{key} {path} cannot be read: {cause.strerror}; the exporter's user needs to read it"
    return f"{' or '.join(files)} cannot be read: {error.strerror}; the exporter's user needs to read it"


def _clients(context: ssl.SSLContext, config: TlsConfig) -> None:
    if config.client_allowed_sans is not None and config.verify != ssl.CERT_REQUIRED:
        raise FileError("client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert")
    if config.client_auth_type == "NoClientCert" and config.client_ca_file:
        raise FileError("client_ca_file without client_auth_type; add client_auth_type: RequireAndVerifyClientCert")
    if config.verify == ssl.CERT_NONE:
        return
    if config.client_ca_file is None:
        raise FileError(f"client_auth_type {config.client_auth_type} needs client_ca_file, against which to verify")
    try:
        context.load_verify_locations(config.client_ca_file)
    except ssl.SSLError as error:
        reason = f" ({error.reason})" if error.reason else ""
        raise FileError(f"client_ca_file {config.client_ca_file} holds no PEM certificate{reason}") from error
    except OSError as error:
        raise FileError(_unread({"client_ca_file": config.client_ca_file}, error)) from error
    context.verify_mode = config.verify


def _ciphers(names: list[str]) -> str:
    unknown = [name for name in names if name not in _SUITES and name not in _TLS13_SUITES]
    if unknown:
        raise FileError(f"cipher_suites: {unknown[0][:80]!r} is not known; known are {', '.join(_SUITES)}")
    chosen = [_SUITES[name] for name in names if name in _SUITES]
    if not chosen:  # those of TLS 1.3 are always on
        raise FileError("cipher_suites: none of them is of TLS 1.2; set min_version: TLS13 instead")
    return ":".join(chosen)


class NewestContext(ssl.SSLContext):
    """asyncio asks a context's `wrap_bio` for each connection: here the newest sound configuration answers."""

    newest: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, newest: Callable[[], ssl.SSLContext]) -> NewestContext:
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.newest = newest
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.newest().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def names_of(certificate: ssl._PeerCertRetDictType | None) -> frozenset[str]:
    """The subject alternative names of a client's certificate."""
    entries = (certificate or {}).get("subjectAltName", ())
    return frozenset(str(entry[1]) for entry in entries if isinstance(entry, tuple) and len(entry) == 2)
