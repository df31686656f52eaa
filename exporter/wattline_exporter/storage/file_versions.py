"""Schema versions of the files in the state folder."""

from __future__ import annotations

import os
import shlex
import sqlite3
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from wattline.contract.history import HISTORY_FILE, REQUESTS_FILE, SCHEMA_VERSION, STATE_FILE
from wattline.contract.requests.stored import REQUESTS_SCHEMA_VERSION
from wattline_exporter.config.values import OperationError

STATE_SCHEMA_VERSION = 4
FILE_SCHEMAS = {
    STATE_FILE: STATE_SCHEMA_VERSION,
    HISTORY_FILE: SCHEMA_VERSION,
    REQUESTS_FILE: REQUESTS_SCHEMA_VERSION,
}


class FileVersionError(OperationError):
    """File with a schema that this version cannot convert. Its exit code states that a restart does
    not help.
    """

    exit_code = os.EX_CONFIG


def check_file_version(path: Path) -> None:
    """Raise FileVersionError for a file of another schema. A missing or damaged file is not an
    error here.
    """
    if not path.exists():
        return
    expected = FILE_SCHEMAS[path.name]
    try:
        found, writer = _file_version(path)
    except sqlite3.Error:
        return
    if found is None or found == str(expected):
        return
    folder = shlex.quote(str(path.parent.absolute()))
    other, same = (
        (f"Wattline {writer}", f"Wattline {writer}")
        if writer
        else ("another version", "that version")
    )
    raise FileVersionError(
        f"cannot use {path}: it has schema {found} of {other}, and Wattline {version('wattline')} "
        "uses schema "
        f"{expected}; install {same} again, or start with an empty folder: mv {folder} "
        f"{folder}.schema-{found}"
    )


def _file_version(path: Path) -> tuple[str | None, str | None]:
    """Return the schema and the version of Wattline that wrote it, each None if unknown. Raises
    sqlite3.Error.
    """
    with closing(
        sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=1)
    ) as connection:
        if path.name == REQUESTS_FILE:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            return (str(found) if found else None), None
        meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
        return meta.get("schema_version"), meta.get("wattline_version")
