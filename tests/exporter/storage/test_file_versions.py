"""State folders of other versions: refused unchanged with the command that helps, or continued."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.daemon import daemon
from wattline.contract.history import HISTORY_FILE, REQUESTS_FILE, SCHEMA, STATE_FILE
from wattline_exporter.requests.store import RequestStore
from wattline_exporter.storage.file_versions import FileVersionError, check_file_version
from wattline_exporter.storage.history import History
from wattline_exporter.storage.state_file import StateFile

_META = "UPDATE meta SET value = '{schema}' WHERE key = 'schema_version'"
_CHANGES = {STATE_FILE: _META, HISTORY_FILE: _META, REQUESTS_FILE: "PRAGMA user_version = {schema}"}
_READERS = {STATE_FILE: StateFile, HISTORY_FILE: History, REQUESTS_FILE: RequestStore}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a state folder with all files, as this version writes them."""
    folder = tmp_path_factory.mktemp("state")
    with daemon(folder, "--no-collector.nvml"):
        pass
    store = RequestStore(folder / "state")
    store._open()
    store.close()
    return folder / "state"


def changed(folder: Path, file: str, statement: str) -> bytes:
    with closing(sqlite3.connect(folder / file, isolation_level=None)) as connection:
        connection.execute(statement)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return (folder / file).read_bytes()


@pytest.mark.parametrize("schema", ["older", 9])
@pytest.mark.parametrize("file", list(_CHANGES))
def test_file_of_another_version_is_refused_unchanged(written, tmp_path, file, schema):
    folder = tmp_path / "state"
    shutil.copytree(written, folder)
    schema = -1 if schema == "older" else schema
    before = changed(folder, file, _CHANGES[file].format(schema=schema))
    writer = "another version" if file == REQUESTS_FILE else f"Wattline {version('wattline')}"

    with pytest.raises(FileVersionError) as refused:
        _READERS[file](folder)

    assert (
        f"{folder / file}: it has schema {schema} of {writer}, and Wattline {version('wattline')}"
        in str(refused.value)
    )
    assert str(refused.value).endswith(f"mv {folder} {folder}.schema-{schema}")
    assert (folder / file).read_bytes() == before


@pytest.mark.parametrize("command", ["serve", "check"])
def test_exporter_newer_folder_ends_until_its_command_is_run(written, tmp_path, command):
    folder = tmp_path / "a folder"
    shutil.copytree(written, folder)
    changed(folder, HISTORY_FILE, _CHANGES[HISTORY_FILE].format(schema=9))
    options = ["--state.path", str(folder), "--no-collector.nvml"]
    program = [sys.executable, "-m", "wattline_exporter", command, *options]
    program += ["--web.listen-address", "127.0.0.1:0"]

    ended = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)

    output = ended.stderr if command == "serve" else ended.stdout
    (line,) = [line for line in output.splitlines() if "schema 9" in line]
    assert ended.returncode == (os.EX_CONFIG if command == "serve" else 1)
    assert "Traceback" not in ended.stderr
    subprocess.run(["sh", "-c", re.search(r"mv .*", line)[0]], check=True)
    StateFile(folder).close()
    History(folder).close()


def test_folder_without_version_numbers_is_continued(written, tmp_path):
    """The first versions wrote no version of Wattline, no requests, and plain tables of samples."""
    folder = tmp_path / "state"
    shutil.copytree(written, folder)
    changed(folder, STATE_FILE, "DELETE FROM meta WHERE key = 'wattline_version'")
    changed(folder, REQUESTS_FILE, "PRAGMA user_version = 0")
    (folder / HISTORY_FILE).unlink()
    with closing(sqlite3.connect(folder / HISTORY_FILE)) as history, history:
        history.executescript(
            f"{SCHEMA}; INSERT INTO meta VALUES ('schema_version', '1'); "
            """INSERT INTO series VALUES (1, 'up', '{"a":"b"}'); INSERT INTO samples VALUES (1000, 1, 2.5)"""
        )

    with daemon(tmp_path, "--no-collector.nvml"):
        pass

    for file in _CHANGES:
        check_file_version(folder / file)
    with closing(sqlite3.connect(folder / HISTORY_FILE)) as history:
        assert history.execute("SELECT value FROM samples WHERE t_ms = 1000").fetchall() == [(2.5,)]
