"""Settings of all tests."""

from pathlib import Path

from tests import conftest


def test_longest_files_exist():
    folder = Path(conftest.__file__).parent

    assert [name for name in conftest.LONGEST_FILES if not (folder / name).is_file()] == []
