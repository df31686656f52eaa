"""Passwords and tokens: checks, caching and refusal."""

import asyncio
import threading
import time

import bcrypt
import pytest

from tests.exporter.web.files import PASSWORD, TOKEN, hashed
from wattline_exporter.config.reloadable_file import ConfigFileError
from wattline_exporter.web.authentication import (
    MAX_VERDICTS,
    ApiToken,
    PasswordChecker,
    PasswordQueueFullError,
    parse_basic_credentials,
    placeholder_hash,
)

USERS = {"ann": hashed().encode()}


class Checks:
    """Counter of bcrypt checks, which block until `go` is set."""

    def __init__(self, blocked=False):
        self.hashes = []
        self.go = threading.Event()
        if not blocked:
            self.go.set()

    def __call__(self, password, stored):
        self.hashes.append(stored)
        assert self.go.wait(30)
        return bcrypt.checkpw(password, stored)


def check_all(passwords, *credentials):
    async def all_of_them():
        return [await passwords.accepts(USERS, name, password) for name, password in credentials]

    try:
        return asyncio.run(all_of_them())
    finally:
        passwords.close()


def test_password_verdict_is_cached():
    checks = Checks()
    good, bad = ("ann", PASSWORD), ("ann", "wrong")

    assert check_all(PasswordChecker(checks), good, good, bad, bad, good) == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert len(checks.hashes) == 2


def test_unknown_user_costs_one_check_and_is_refused():
    checks = Checks()

    assert (
        check_all(PasswordChecker(checks), ("bob", PASSWORD), ("", ""), ("ann\0", PASSWORD))
        == [False] * 3
    )
    assert len(checks.hashes) == 3
    assert {stored[:7] for stored in checks.hashes} == {USERS["ann"][:7]} == {b"$2b$04$"}
    assert not bcrypt.checkpw(b"", placeholder_hash(USERS))


def test_changed_hash_is_checked_again():
    async def run_checks():
        passwords = PasswordChecker()
        first = await passwords.accepts(USERS, "ann", PASSWORD)
        changed = await passwords.accepts({"ann": hashed("another").encode()}, "ann", PASSWORD)
        gone = await passwords.accepts({}, "ann", PASSWORD)
        passwords.close()
        return first, changed, gone

    assert asyncio.run(run_checks()) == (True, False, False)


def test_password_guesses_do_not_evict_valid_users():
    checks = Checks()
    passwords = PasswordChecker(
        lambda password, stored: (
            checks(password, stored) if password == PASSWORD.encode() else False
        )
    )
    guesses = [("ann", f"guess {i}") for i in range(3 * MAX_VERDICTS)]
    answers = check_all(passwords, ("ann", PASSWORD), *guesses, ("ann", PASSWORD))

    assert (answers[0], answers[-1], any(answers[1:-1])) == (True, True, False)
    assert len(checks.hashes) == 1
    assert len(passwords._bad._keys) == MAX_VERDICTS


def test_password_checks_do_not_block_and_are_limited():
    async def run_checks():
        checks = Checks(blocked=True)
        passwords = PasswordChecker(checks)
        waiting = [asyncio.create_task(passwords.accepts(USERS, "ann", f"{i}")) for i in range(32)]
        same = [asyncio.create_task(passwords.accepts(USERS, "ann", "0")) for _ in range(10)]
        await asyncio.sleep(0.05)  # the event loop runs while no check has ended
        with pytest.raises(PasswordQueueFullError):
            await passwords.accepts(USERS, "ann", PASSWORD)
        checks.go.set()
        answers = await asyncio.gather(*waiting, *same)
        assert await passwords.accepts(USERS, "ann", PASSWORD)
        passwords.close()
        return answers, len(checks.hashes)

    answers, checked = asyncio.run(run_checks())
    assert not any(answers)
    assert checked == 33  # the ten identical requests shared one check


@pytest.mark.parametrize("password", ["", "x" * 73, "a\0b", "\udcff", "pässwörd", "x" * 8_000])
def test_password_any_text_has_a_verdict(password):
    assert check_all(PasswordChecker(), ("ann", password)) == [False]


def test_password_is_compared_up_to_72_bytes():
    """Go's bcrypt, and so other exporters, do the same."""
    users = {"ann": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4))}

    async def run_checks():
        passwords = PasswordChecker()
        answer = await passwords.accepts(users, "ann", "x" * 80)
        passwords.close()
        return answer

    assert asyncio.run(run_checks())


@pytest.mark.parametrize(
    ("header", "credentials"),
    [
        ("Basic YW5uOmE6Yg==", ("ann", "a:b")),
        ("basic YW5uOg==", ("ann", "")),
        ("Basic YW5u", None),
        ("Basic ####", None),
        ("Basic", None),
        ("Bearer YW5uOmE=", None),
        ("Basic YW5uOmE", None),
        ("Basic \xff", None),
        ("", None),
    ],
)
def test_basic_credentials_header_is_parsed(header, credentials):
    assert parse_basic_credentials(header) == credentials


# -- the token


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o640)
    return path


def test_api_token_exact_value_is_accepted(file, caplog):
    token = ApiToken(file)

    assert token.accepts(f"Bearer {TOKEN}")
    assert token.accepts(f"bearer  {TOKEN} ")
    for other in (
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN[:-1]}",
        "Bearer \udcff\xe9",
    ):
        assert not token.accepts(other)
    assert caplog.text == ""


def test_api_token_world_readable_file_is_logged(file, caplog):
    file.chmod(0o644)
    ApiToken(file)

    assert "is readable by every user" in caplog.text
    assert "chmod o-r" in caplog.text


@pytest.mark.parametrize(
    "content", ["", "\n", "short", "a" * 15, "two words of it all", "x" * 5_000, "é" * 16]
)
def test_api_token_invalid_file_is_one_line(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ConfigFileError, match="openssl rand"):
        ApiToken(path)


def test_api_token_missing_file_is_one_line(tmp_path):
    with pytest.raises(ConfigFileError, match=r"No such file.*openssl rand"):
        ApiToken(tmp_path / "none")


def test_api_token_new_content_counts_and_empty_file_keeps_old(file):
    token, other = ApiToken(file), TOKEN[::-1]
    token._file._clock = lambda: time.monotonic() + 2
    file.write_text(other)
    assert (token.accepts(f"Bearer {other}"), token.accepts(f"Bearer {TOKEN}")) == (True, False)

    token._file._clock = lambda: time.monotonic() + 4
    file.write_text("")
    assert token.accepts(f"Bearer {other}")
