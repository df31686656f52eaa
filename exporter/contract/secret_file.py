"""Files that contain a secret, and the tokens of the carbon providers."""

from __future__ import annotations

import os
import re
from pathlib import Path

MAX_SECRET_BYTES = 10_000


class SecretFileError(Exception):
    """A secret file that cannot be used: one line with its path and the cause, never with its content."""

    def __init__(self, path: Path, cause: str, *, is_denied: bool = False) -> None:
        super().__init__(f"cannot read {path}: {cause}")
        self.is_denied = is_denied


def read_secret(path: Path, *, min_chars: int = 1, max_chars: int = MAX_SECRET_BYTES) -> str:
    """Return the one line of the file without surrounding space. Raises SecretFileError."""
    secret = read_secret_text(path).strip()
    if not secret:
        raise SecretFileError(path, "the file is empty")
    if not secret.isprintable():
        raise SecretFileError(path, "expected one line of printable text")
    if not min_chars <= len(secret) <= max_chars:
        raise SecretFileError(path, f"expected {min_chars} to {max_chars} characters, found {len(secret)}")
    return secret


def read_secret_text(path: Path) -> str:
    """Return the file's whole text. Raises SecretFileError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        is_denied = isinstance(error, PermissionError)
        raise SecretFileError(path, error.strerror or str(error), is_denied=is_denied) from None
    if len(content) > MAX_SECRET_BYTES:
        raise SecretFileError(path, f"the file is larger than {MAX_SECRET_BYTES} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SecretFileError(path, "the content is not UTF-8 text") from None


PROVIDERS = ("gb", "static", "energy-charts", "electricitymaps", "watttime")
TOKEN_VARIABLE = "WATTLINE_CARBON_TOKEN"  # noqa: S105  # name of an environment variable


def read_provider_secret(path: Path | None, provider: str) -> str | None:
    """Return the secret of a provider: its line `PROVIDER=SECRET`, else the only line; None without one.

    Without `path`, read the text from WATTLINE_CARBON_TOKEN. Empty lines and comments (`#`) are ignored. Raises
    SecretFileError, or ValueError for an ambiguous or invalid secret. No message contains the secret.
    """
    text = os.environ.get(TOKEN_VARIABLE, "") if path is None else read_secret_text(path)
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    named = [line.removeprefix(f"{provider}=") for line in lines if line.startswith(f"{provider}=")]
    unnamed = [line for line in lines if not line.startswith(tuple(f"{name}=" for name in PROVIDERS))]
    if len(named) > 1 or (not named and len(unnamed) > 1):
        raise ValueError(f"more than one carbon token for {provider}; use one line {provider}=SECRET")
    secret = next(iter(named or unnamed), None)
    if secret is not None and not re.fullmatch(r"[ -~]{1,4096}", secret):
        raise ValueError(f"invalid carbon token for {provider}: expected 1 to 4,096 printable ASCII characters")
    return secret
