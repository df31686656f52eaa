"""TLS contexts of the web configuration file."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from wattline_exporter.config.reloadable_file import ConfigFileError

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
    "RequestClientCert": ssl.CERT_NONE,  # not verified, so that it has no effect
    # Python's ssl cannot require a certificate without verification
    "RequireAnyClientCert": ssl.CERT_REQUIRED,
    "RequireClientCert": ssl.CERT_REQUIRED,  # older name
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_MAX_PEM_BYTES = 1024 * 1024
_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# Suites that Go's crypto/tls considers secure, by Go's name, with OpenSSL's name:
# https://pkg.go.dev/crypto/tls#pkg-constants
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


class TlsServerConfig(BaseModel):
    """Section `tls_server_config` of the exporter-toolkit's format; paths are absolute once
    loaded.
    """

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
        return [
            self.cert_file,
            self.key_file,
            *([self.client_ca_file] if self.client_ca_file else []),
        ]


def make_tls_context(config: TlsServerConfig) -> ssl.SSLContext:
    """Return the server's context. Raises ConfigFileError, which starts with the key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _version("min_version", config.min_version)
    context.maximum_version = _version("max_version", config.max_version)
    if context.minimum_version > context.maximum_version:
        raise ConfigFileError("min_version is above max_version; exchange them")
    try:
        context.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    except ssl.SSLError as error:
        raise ConfigFileError(_pair(config, error)) from error
    except OSError as error:
        raise ConfigFileError(
            _unreadable({"cert_file": config.cert_file, "key_file": config.key_file}, error)
        ) from error
    _configure_client_auth(context, config)
    if config.cipher_suites:
        context.set_ciphers(_ciphers(config.cipher_suites))
    return context


def _no_password() -> str:
    raise ConfigFileError("key_file is encrypted; store it without a password (openssl pkey)")


def _version(key: str, name: str) -> ssl.TLSVersion:
    if name not in _VERSIONS:
        raise ConfigFileError(
            f"{key}: {name[:40]!r} is not supported (it is insecure); use TLS12 or TLS13"
        )
    return _VERSIONS[name]


def _pair(config: TlsServerConfig, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"key_file {config.key_file} does not match cert_file {config.cert_file}; create "
            "both again"
        )
    if not _is_pem(config.cert_file, b"CERTIFICATE"):
        return (
            f"cert_file {config.cert_file} is not a PEM certificate (-----BEGIN CERTIFICATE-----)"
        )
    if not _is_pem(config.key_file, b"PRIVATE KEY"):
        return f"key_file {config.key_file} is not a PEM key (-----BEGIN PRIVATE KEY-----)"
    reason = f" ({error.reason})" if error.reason else ""
    return (
        f"cert_file {config.cert_file} and key_file {config.key_file} are not a valid PEM chain "
        f"and key{reason}; "
        "create both again"
    )


def _is_pem(path: Path, kind: bytes) -> bool:
    try:
        with path.open("rb") as opened:
            return (
                re.search(rb"-----BEGIN [A-Z ]*" + kind + b"-----", opened.read(_MAX_PEM_BYTES))
                is not None
            )
    except OSError:
        return False


def _unreadable(files: dict[str, Path], error: OSError) -> str:
    """Return which of the files, given by key, cannot be read; OpenSSL does not report it."""
    for key, path in files.items():
        try:
            with path.open("rb") as opened:
                opened.read(1)
        except OSError as cause:
            return f"cannot read {key} {path}: {cause.strerror}; let the exporter's user read it"
    return f"cannot read {' or '.join(files)}: {error.strerror}; let the exporter's user read it"


def _configure_client_auth(context: ssl.SSLContext, config: TlsServerConfig) -> None:
    if config.client_allowed_sans is not None and config.verify != ssl.CERT_REQUIRED:
        raise ConfigFileError(
            "client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert"
        )
    if config.client_auth_type == "NoClientCert" and config.client_ca_file:
        raise ConfigFileError("client_ca_file needs client_auth_type: RequireAndVerifyClientCert")
    if config.verify == ssl.CERT_NONE:
        return
    if config.client_ca_file is None:
        raise ConfigFileError(f"client_auth_type {config.client_auth_type} needs client_ca_file")
    try:
        context.load_verify_locations(config.client_ca_file)
    except ssl.SSLError as error:
        reason = f" ({error.reason})" if error.reason else ""
        raise ConfigFileError(
            f"client_ca_file {config.client_ca_file} is not a PEM certificate{reason}"
        ) from error
    except OSError as error:
        raise ConfigFileError(
            _unreadable({"client_ca_file": config.client_ca_file}, error)
        ) from error
    context.verify_mode = config.verify


def _ciphers(names: list[str]) -> str:
    unknown = [name for name in names if name not in _SUITES and name not in _TLS13_SUITES]
    if unknown:
        raise ConfigFileError(
            f"cipher_suites: {unknown[0][:80]!r} is unknown; use {', '.join(_SUITES)}"
        )
    chosen = [_SUITES[name] for name in names if name in _SUITES]
    if not chosen:  # those of TLS 1.3 are always enabled
        raise ConfigFileError("cipher_suites: no suite of TLS 1.2; set min_version: TLS13 instead")
    return ":".join(chosen)


class ReloadingTlsContext(ssl.SSLContext):
    """Context that uses the latest valid one for each connection, for which asyncio calls
    `wrap_bio`.
    """

    latest: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, latest: Callable[[], ssl.SSLContext]) -> ReloadingTlsContext:
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.latest = latest
        return context

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return self.latest().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def alternative_names(certificate: ssl._PeerCertRetDictType | None) -> frozenset[str]:
    """Return the subject alternative names of a client's certificate."""
    entries = (certificate or {}).get("subjectAltName", ())
    return frozenset(
        str(entry[1]) for entry in entries if isinstance(entry, tuple) and len(entry) == 2
    )
