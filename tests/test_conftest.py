"""Settings of all tests."""

from pathlib import Path

from tests import conftest


def test_longest_files_exist():
    folder = Path(conftest.__file__).parent

    assert [name for name in conftest.LONGEST_FILES if not (folder / name).is_file()] == []


def test_files_of_a_group_exist_and_are_in_one_group():
    folder = Path(conftest.__file__).parent
    names = [name for group in conftest.GROUPS.values() for name in group]

    assert [name for name in names if not (folder / name).is_file()] == []
    assert len(names) == len(set(names))
