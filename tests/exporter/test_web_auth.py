"""Passwords and tokens: what is checked, what is remembered, what is refused."""

import asyncio
import threading
import time

import bcrypt
import pytest

from exporter.web.auth import REMEMBERED, BusyError, Passwords, Token, basic_credentials, stand_in
from exporter.web.reloaded import FileError
from tests.exporter.web_files import PASSWORD, TOKEN, hashed

USERS = {"ann": hashed().encode()}


class Checks:
    """bcrypt's check, counted, and held up as long as `go` is not set."""

    def __init__(self, held=False):
        self.hashes = []
        self.go = threading.Event()
        if not held:
            self.go.set()

    def __call__(self, password, stored):
        self.hashes.append(stored)
        assert self.go.wait(30)
        return bcrypt.checkpw(password, stored)


def ask(passwords, *asked):
    async def all_of_them():
        return [await passwords.accepts(USERS, name, password) for name, password in asked]

    try:
        return asyncio.run(all_of_them())
    finally:
        passwords.close()


def test_a_verdict_is_made_once_and_then_remembered():
    checks = Checks()
    good, bad = ("ann", PASSWORD), ("ann", "wrong")

    assert ask(Passwords(checks), good, good, bad, bad, good) == [True, True, False, False, True]
    assert len(checks.hashes) == 2


def test_an_unknown_user_costs_a_check_of_the_same_cost_and_never_gets_in():
    checks = Checks()

    assert ask(Passwords(checks), ("bob", PASSWORD), ("", ""), ("ann\0", PASSWORD)) == [False] * 3
    assert len(checks.hashes) == 3
    assert {stored[:7] for stored in checks.hashes} == {USERS["ann"][:7]} == {b"$2b$04$"}
    assert not bcrypt.checkpw(b"", stand_in(USERS))


def test_a_changed_hash_is_another_question():
    async def asked():
        passwords = Passwords()
        first = await passwords.accepts(USERS, "ann", PASSWORD)
        changed = await passwords.accepts({"ann": hashed("another").encode()}, "ann", PASSWORD)
        gone = await passwords.accepts({}, "ann", PASSWORD)
        passwords.close()
        return first, changed, gone

    assert asyncio.run(asked()) == (True, False, False)


def test_guessing_does_not_push_out_who_is_known_and_memory_is_bounded():
    checks = Checks()
    passwords = Passwords(lambda password, stored: checks(password, stored) if password == PASSWORD.encode() else False)
    guesses = [("ann", f"guess {i}") for i in range(3 * REMEMBERED)]
    answers = ask(passwords, ("ann", PASSWORD), *guesses, ("ann", PASSWORD))

    assert (answers[0], answers[-1], any(answers[1:-1])) == (True, True, False)
    assert len(checks.hashes) == 1
    assert len(passwords._bad._keys) == REMEMBERED


def test_the_event_loop_goes_on_while_passwords_are_checked_and_the_line_has_an_end():
    async def asked():
        checks = Checks(held=True)
        passwords = Passwords(checks)
        waiting = [asyncio.create_task(passwords.accepts(USERS, "ann", f"{i}")) for i in range(32)]
        same = [asyncio.create_task(passwords.accepts(USERS, "ann", "0")) for _ in range(10)]
        await asyncio.sleep(0.05)  # the loop turns although no check has ended
        with pytest.raises(BusyError):
            await passwords.accepts(USERS, "ann", PASSWORD)
        checks.go.set()
        answers = await asyncio.gather(*waiting, *same)
        assert await passwords.accepts(USERS, "ann", PASSWORD)
        passwords.close()
        return answers, len(checks.hashes)

    answers, checked = asyncio.run(asked())
    assert not any(answers)
    assert checked == 33  # the ten that asked the same waited for the same check


@pytest.mark.parametrize("password", ["", "x" * 73, "a\0b", "\udcff", "pässwörd", "x" * 8_000])
def test_any_password_has_a_verdict(password):
    assert ask(Passwords(), ("ann", password)) == [False]


def test_a_password_beyond_72_bytes_is_what_its_first_72_are():
    """As Go's bcrypt has it, and so every other exporter."""
    users = {"ann": bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4))}

    async def asked():
        passwords = Passwords()
        answer = await passwords.accepts(users, "ann", "x" * 80)
        passwords.close()
        return answer

    assert asyncio.run(asked())


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
def test_basic_credentials_are_read_or_there_are_none(header, credentials):
    assert basic_credentials(header) == credentials


# -- the token


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o640)
    return path


def test_the_token_is_taken_and_nothing_else(file, caplog):
    token = Token(file)

    assert token.accepts(f"Bearer {TOKEN}")
    assert token.accepts(f"bearer  {TOKEN} ")
    for other in ("", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}", "Bearer \udcff\xe9"):
        assert not token.accepts(other)
    assert caplog.text == ""


def test_a_token_that_every_user_may_read_is_warned_of(file, caplog):
    file.chmod(0o644)
    Token(file)

    assert "is readable by every user" in caplog.text
    assert "chmod o-r" in caplog.text


@pytest.mark.parametrize("content", ["", "\n", "short", "a" * 15, "two words of it all", "x" * 5_000, "é" * 16])
def test_a_file_without_a_token_is_one_line(tmp_path, content):
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(FileError, match="openssl rand"):
        Token(path)


def test_a_token_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(FileError, match=r"No such file.*openssl rand"):
        Token(tmp_path / "none")


def test_a_new_token_counts_and_an_emptied_file_leaves_the_old(file):
    token, other = Token(file), TOKEN[::-1]
    token._file._clock = lambda: time.monotonic() + 2
    file.write_text(other)
    assert (token.accepts(f"Bearer {other}"), token.accepts(f"Bearer {TOKEN}")) == (True, False)

    token._file._clock = lambda: time.monotonic() + 4
    file.write_text("")
    assert token.accepts(f"Bearer {other}")
