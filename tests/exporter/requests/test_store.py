"""File of stored requests."""

import sqlite3
from contextlib import closing

from wattline_exporter.requests import store as store_module
from wattline_exporter.requests.store import RequestStore, StoredPage


def test_file_that_is_being_created_has_no_requests(tmp_path):
    store = RequestStore(tmp_path)
    store.path.touch()
    assert store.page("server", 0.0, 1.0, 10, (0, 0)) == StoredPage([], None)

    with closing(sqlite3.connect(store.path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    assert store.page("server", 0.0, 1.0, 10, (0, 0)) == StoredPage([], None)


def test_delete_oldest_keeps_the_last_row():
    """A twentieth of 0 to 99, and 1: rows below 5.95. One row alone is not deleted."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE divided_slot (begin_at REAL)")
        connection.executemany("INSERT INTO divided_slot VALUES (?)", [(n,) for n in range(100)])
        store_module._delete_oldest(connection, "divided_slot", "begin_at")
        kept = [n for (n,) in connection.execute("SELECT begin_at FROM divided_slot")]
        connection.execute("DELETE FROM divided_slot WHERE begin_at < 99")
        store_module._delete_oldest(connection, "divided_slot", "begin_at")
        alone = connection.execute("SELECT begin_at FROM divided_slot").fetchall()

    assert kept == list(range(6, 100))
    assert alone == [(99.0,)]
