"""File of stored requests."""

import sqlite3
from contextlib import closing

from wattline_exporter.requests.store import RequestStore, StoredPage


def test_file_that_is_being_created_has_no_requests(tmp_path):
    store = RequestStore(tmp_path)
    store.path.touch()
    assert store.page("server", 0.0, 1.0, 10, (0, 0)) == StoredPage([], None)

    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert store.page("server", 0.0, 1.0, 10, (0, 0)) == StoredPage([], None)
