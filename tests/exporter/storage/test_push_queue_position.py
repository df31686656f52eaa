"""How far a server is, as another version, or a damaged disk, has left it in the history."""

import json
import sqlite3
import time
from contextlib import closing

import pytest

from exporter.contract.history import HISTORY_FILE
from tests.exporter.push.node import VICTORIA, agrees, count, remember
from tests.exporter.push.proxy import on_server, proxy
from tests.polling import eventually

AWAY = "http://127.0.0.1:9" + VICTORIA


def write(sender, value):
    """What follows `push <url>` in the history's file."""
    row = (f"push {sender.url}", value)
    with closing(sqlite3.connect(sender.folder / HISTORY_FILE)) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)


def seconds(pushed, now):
    """Return the times of the samples that are not pushed, in seconds from `now`."""
    samples = pushed.history.backlog.oldest(pushed.history.settled_ms, 100_000).samples
    return sorted({round(sample.t_ms / 1_000 - now) for sample in samples})


def test_push_position_ignores_fields_of_newer_versions(sender):
    now = float(int(time.time()))
    pushed = sender(AWAY)
    remember(pushed.history, now, 10)
    begun = {"t_ms": int(now + 4) * 1_000, "series_id": 1 << 40, "accepted": 25, "refused": 7, "dropped": 3}
    write(pushed, json.dumps({**begun, "checksum": "ab", "shards": [1, 2], "moves": 2}))
    pushed.again()

    assert seconds(pushed, now) == [5, 6, 7, 8, 9]
    assert pushed.counted() == {"accepted": 25, "refused": 7, "dropped": 3}
    assert pushed.history.backlog.rewind().done == (begun["t_ms"], begun["series_id"])


def test_push_position_of_older_version_has_defaults(sender):
    now = float(int(time.time()))
    pushed = sender(AWAY)
    remember(pushed.history, now, 10)
    write(pushed, json.dumps({"t_ms": int(now + 7) * 1_000, "series_id": 1 << 40}))
    pushed.again()

    assert seconds(pushed, now) == [8, 9]
    assert pushed.counted() == {"accepted": 0, "refused": 0, "dropped": 0}


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        '{"t_ms": 17900',
        "[]",
        "null",
        '{"t_ms": 1790000000000}',
        '{"t_ms": "1790000000000", "series_id": 1}',
        '{"t_ms": 1790000000000, "series_id": -1}',
        '{"t_ms": 1790000000000, "series_id": 1.5}',
        '{"t_ms": 99999999999999999999, "series_id": 1}',
        '{"t_ms": 1790000000000, "series_id": 1, "accepted": NaN}',
        b"\xff\xfe\x00",
    ],
)
def test_push_position_damaged_is_logged_and_all_is_sent(both, sender, caplog, damaged):
    now = round(time.time(), 3)
    with proxy(both.victoria) as between:
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 60, 30)
        pushed.push()
        write(pushed, damaged)
        pushed.again()
        remember(pushed.history, now - 30, 30)
        pushed.push()

    (said,) = [r.getMessage() for r in caplog.records if "damaged" in r.getMessage()]
    assert f"the stored position of push {between.url}{VICTORIA} in the history is damaged" in said
    assert "all samples are sent again" in said
    assert agrees(both.victoria, pushed, now) == 300
    assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_push_queue_skips_series_with_damaged_labels(both, sender, caplog):
    now = round(time.time(), 3)
    pushed = sender(both.victoria + VICTORIA)
    remember(pushed.history, now - 60, 60)
    with closing(sqlite3.connect(pushed.folder / HISTORY_FILE)) as connection, connection:
        for number, damaged in enumerate(['{"gpu"', "[1]", b"\xff"], 1):
            connection.execute("UPDATE series SET labels = ? WHERE id = ?", (damaged, number))
    pushed.push()

    eventually(lambda: count(on_server(both.victoria, pushed.name, now)) == 2 * 60, "the other two series")
    assert caplog.text.count("are damaged; the series is not pushed") == 3


def test_push_queue_new_server_gets_all_samples_and_it_is_logged(both, sender, caplog):
    caplog.set_level("INFO")
    now = round(time.time(), 3)

    def said():
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("pushing to ")]

    pushed = sender(both.victoria + VICTORIA)
    remember(pushed.history, now - 60, 60)
    pushed.push()
    pushed.again()
    pushed.push(until=lambda: len(said()) == 2 and pushed.is_done())
    with proxy(both.victoria) as between:
        pushed.url = between.url + VICTORIA
        pushed.again()
        pushed.push()

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 60))
    new = f"new server, the whole history is sent: 300 samples queued since {since}"
    first, again, other = said()
    assert first == f"pushing to {both.victoria}{VICTORIA}: {new}"
    assert again.startswith(f"pushing to {both.victoria}{VICTORIA}: 300 samples queued")
    assert other == f"pushing to {between.url}{VICTORIA}: {new}"
    assert agrees(both.victoria, pushed, now) == 300
