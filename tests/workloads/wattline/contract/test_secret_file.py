"""Secrets in files: the accepted content, and errors that never contain it."""

import os

import pytest

from wattline.contract.secret_file import (
    MAX_SECRET_BYTES,
    SecretFileError,
    read_secret,
    read_secret_text,
)


def test_secret_surrounding_space_is_removed(tmp_path):
    (tmp_path / "token").write_text("  hunter2\n\n")

    assert read_secret(tmp_path / "token") == "hunter2"


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"hunter2\nhunter3", "expected one line of printable text"),
        (b"hun\x07ter2", "expected one line of printable text"),
        (b"hunter\xff", "the content is not UTF-8 text"),
        (b"hunter", "expected 7 to 9 characters, found 6"),
        (b"hunter2222", "expected 7 to 9 characters, found 10"),
        (b"x" * (MAX_SECRET_BYTES + 1), "the file is larger than 10000 bytes"),
    ],
)
def test_unusable_secret_is_one_line_without_the_content(tmp_path, content, cause):
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(SecretFileError) as caught:
        read_secret(path, min_chars=7, max_chars=9)

    assert str(caught.value) == f"cannot read {path}: {cause}"
    assert not caught.value.is_denied


def test_missing_secret_file_is_named(tmp_path):
    with pytest.raises(SecretFileError, match=r"^cannot read .*/none: No such file or directory$"):
        read_secret(tmp_path / "none")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_secret_file_is_marked_as_denied(tmp_path):
    (tmp_path / "token").touch(mode=0o000)
    with pytest.raises(SecretFileError) as caught:
        read_secret(tmp_path / "token")

    assert caught.value.is_denied


def test_secret_text_keeps_all_lines(tmp_path):
    (tmp_path / "tokens").write_text("a=1\nb=2\n")

    assert read_secret_text(tmp_path / "tokens") == "a=1\nb=2\n"
