"""Files that contain a secret."""

from __future__ import annotations

from pathlib import Path

MAX_SECRET_BYTES = 10_000


class SecretFileError(Exception):
    """A secret file that cannot be used: one line with its path and the cause, never with its
    content.
    """

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
        raise SecretFileError(
            path, f"expected {min_chars} to {max_chars} characters, found {len(secret)}"
        )
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
