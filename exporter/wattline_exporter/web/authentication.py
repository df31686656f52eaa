"""Authentication of HTTP clients: passwords with bcrypt, and the run API's bearer token."""

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

from wattline.contract.secret_file import SecretFileError, read_secret
from wattline_exporter.config.reloadable_file import ConfigFileError, ReloadableFile

MIN_TOKEN = 16
MAX_TOKEN = 4096
MAX_VERDICTS = 512
_THREADS = 2
_MAX_PENDING = 32
_BCRYPT_BYTES = 72
"""Length after which bcrypt ignores a password."""

log = logging.getLogger(__name__)


class PasswordQueueFullError(Exception):
    """A refused check, since too many are pending."""


class VerdictCache:
    """Keys of the most recent verdicts of one kind."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        if key not in self._keys:
            return False
        self._keys.move_to_end(key)
        return True

    def add(self, key: bytes) -> None:
        self._keys[key] = None
        while len(self._keys) > MAX_VERDICTS:
            self._keys.popitem(last=False)


def _matches_hash(password: bytes, hashed: bytes) -> bool:
    """Return whether the hash is that of the password. Raises ValueError for an invalid hash."""
    import bcrypt  # 0.4 MB of memory, only where clients have passwords

    return bcrypt.checkpw(password, hashed)


class PasswordChecker:
    """Checker of passwords in threads, with a cache of verdicts.

    Positive and negative verdicts have separate caches, so that guessing does not evict valid
    users. The keys are keyed hashes, useless outside this process. Unknown users are checked
    against a placeholder hash of the same cost, so that the response time does not reveal which
    users exist.
    """

    def __init__(self, check: Callable[[bytes, bytes], bool] = _matches_hash) -> None:
        self._check = check
        self._secret = secrets.token_bytes(32)
        self._good, self._bad = VerdictCache(), VerdictCache()
        self._pending: dict[bytes, asyncio.Future[bool]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "bcrypt")

    async def accepts(self, users: Mapping[str, bytes], name: str, password: str) -> bool:
        """Return whether the password is the user's. Raises PasswordQueueFullError."""
        stored = users.get(name)
        hashed = stored or placeholder_hash(users)
        candidate = password.encode("utf-8", "surrogateescape")
        parts = (name.encode("utf-8", "surrogateescape"), candidate, hashed)
        digest = b"".join(hashlib.sha256(part).digest() for part in parts)
        key = hmac.digest(self._secret, digest, "sha256")
        if key in self._good or key in self._bad:
            return key in self._good
        matches = await self._matches(key, candidate[:_BCRYPT_BYTES], hashed)
        accepted = matches and stored is not None
        (self._good if accepted else self._bad).add(key)
        return accepted

    async def _matches(self, key: bytes, candidate: bytes, hashed: bytes) -> bool:
        """Return the verdict; identical concurrent requests share one check."""
        pending = self._pending.get(key)
        if pending is None:
            if len(self._pending) >= _MAX_PENDING:
                raise PasswordQueueFullError
            pending = asyncio.get_running_loop().run_in_executor(
                self._threads, self._check_one, candidate, hashed
            )
            self._pending[key] = pending
            pending.add_done_callback(lambda _: self._pending.pop(key, None))
        return await asyncio.shield(pending)

    def _check_one(self, candidate: bytes, hashed: bytes) -> bool:
        try:
            return self._check(candidate, hashed)
        except ValueError:  # an invalid hash
            return False

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def placeholder_hash(users: Mapping[str, bytes]) -> bytes:
    """Return a hash that no password has, with the highest cost of the users' hashes."""
    cost = max((int(hashed[4:6]) for hashed in users.values()), default=10)
    return b"$2b$%02d$" % cost + b"." * 53


def parse_basic_credentials(authorization: str) -> tuple[str, str] | None:
    """Return the name and password of a `Basic` header, None for any other."""
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


class ApiToken:
    """Bearer token of the run API in a file. Raises ConfigFileError."""

    def __init__(self, path: Path) -> None:
        self._file = ReloadableFile(lambda: _read_token(path), lambda _: [path])

    def accepts(self, authorization: str) -> bool:
        sent = authorization.partition(" ")[2].strip().encode("utf-8", "surrogateescape")
        return hmac.compare_digest(sent, self._file.now()) and is_bearer(authorization)


def _read_token(path: Path) -> bytes:
    remedy = f"create a token with: (umask 077; openssl rand -hex 32 > {path})"
    try:
        token = read_secret(path, min_chars=MIN_TOKEN, max_chars=MAX_TOKEN)
    except SecretFileError as error:
        if error.is_denied:
            remedy = "give the file a group of the exporter's user, and chmod g+r"
        raise ConfigFileError(f"--web.api-token-file: {error}; {remedy}") from error
    if not token.isascii() or len(token.split()) != 1:
        raise ConfigFileError(
            f"--web.api-token-file: cannot use {path}: the token is not one word of ASCII; {remedy}"
        )
    if path.stat().st_mode & 0o004:
        log.warning(
            "--web.api-token-file %s is readable by every user of this host; run: chmod o-r %s",
            path,
            path,
        )
    return token.encode()
