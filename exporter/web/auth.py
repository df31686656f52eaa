"""Who asks: passwords by bcrypt, off the event loop and remembered; the bearer token of the run API."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import bcrypt

from exporter.contract.secret_file import SecretFileError, read_secret
from exporter.web.reloaded import FileError, Reloaded

MIN_TOKEN = 16
MAX_TOKEN = 4096
REMEMBERED = 512
_THREADS = 2
_WAITING = 32
_BCRYPT_BYTES = 72
"""bcrypt looks at no more of a password."""

log = logging.getLogger(__name__)


class BusyError(Exception):
    """Too many passwords are being checked."""


class Verdicts:
    """The last verdicts of one kind, oldest first."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)
        return True

    def add(self, key: bytes) -> None:
        self._keys[key] = None
        while len(self._keys) > REMEMBERED:
            self._keys.popitem(last=False)


class Passwords:
    """Good and bad verdicts are remembered apart, so that who guesses cannot push out who knows.

    What is remembered is a keyed hash, of no use outside this process. An unknown user is checked against a hash of
    the same cost, so that the time of an answer does not tell who exists.
    """

    def __init__(self, check: Callable[[bytes, bytes], bool] = bcrypt.checkpw) -> None:
        self._check = check
        self._secret = secrets.token_bytes(32)
        self._good, self._bad = Verdicts(), Verdicts()
        self._pending: dict[bytes, asyncio.Future[bool]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "bcrypt")

    async def accepts(self, users: Mapping[str, bytes], name: str, password: str) -> bool:
        """Raises BusyError."""
        stored = users.get(name)
        hashed = stored or stand_in(users)
        tried = password.encode("utf-8", "surrogateescape")
        parts = (name.encode("utf-8", "surrogateescape"), tried, hashed)
        digest = b"".join(hashlib.sha256(part).digest() for part in parts)
        key = hmac.digest(self._secret, digest, "sha256")
        if key in self._good or key in self._bad:
            return key in self._good
        matches = await self._matches(key, tried[:_BCRYPT_BYTES], hashed)
        accepted = matches and stored is not None
        (self._good if accepted else self._bad).add(key)
        return accepted

    async def _matches(self, key: bytes, tried: bytes, hashed: bytes) -> bool:
        """Who asks the same at the same time waits for the same check."""
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= _WAITING:
                raise BusyError
            pending = asyncio.get_running_loop().run_in_executor(self._threads, self._check_one, tried, hashed)
            self._pending[key] = pending
            pending.add_done_callback(lambda _: self._pending.pop(key, None))
        return await asyncio.shield(pending)

    def _check_one(self, tried: bytes, hashed: bytes) -> bool:
        try:
            return self._check(tried, hashed)
        except ValueError:  # a hash that only looks like one
            return False

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def stand_in(users: Mapping[str, bytes]) -> bytes:
    """The hash of no password, at the highest cost of the users' own."""
    cost = max((int(hashed[4:6]) for hashed in users.values()), default=10)
    return b"$2b$%02d$" % cost + b"." * 53


def basic_credentials(authorization: str) -> tuple[str, str] | None:
    """Name and password of `Basic …`; None where it is none."""
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    with suppress(binascii.Error, ValueError):
        text = base64.b64decode(encoded.strip(), validate=True).decode("utf-8", "surrogateescape")
        name, colon, password = text.partition(":")
        return (name, password) if colon else None
    return None


def is_bearer(authorization: str) -> bool:
    return authorization.partition(" ")[0].lower() == "bearer"


class Token:
    """The bearer token in a file, read again when it changes. Raises FileError."""

    def __init__(self, path: Path) -> None:
        self._file = Reloaded(lambda: _read_token(path), lambda _: [path])

    def accepts(self, authorization: str) -> bool:
        shown = authorization.partition(" ")[2].strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(shown, self._file.now()) and is_bearer(authorization)


def _read_token(path: Path) -> bytes:
    remedy = f"create a token with: (umask 077; openssl rand -hex 32 > {path})"
    try:
        token = read_secret(path, min_chars=MIN_TOKEN, max_chars=MAX_TOKEN)
    except SecretFileError as error:
        if error.is_denied:
            remedy = "give the file a group of the exporter's user, and chmod g+r"
        raise FileError(f"--web.api-token-file: {error}; {remedy}") from error
    if not token.isascii() or len(token.split()) != 1:
        raise FileError(f"--web.api-token-file: cannot use {path}: the token is not one word of ASCII; {remedy}")
    if path.stat().st_mode & 0o004:
        log.warning("--web.api-token-file %s is readable by every user of this host; run: chmod o-r %s", path, path)
    return token.encode()
