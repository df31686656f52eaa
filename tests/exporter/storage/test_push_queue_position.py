"""Push positions stored by another version or on a damaged disk."""

import json
import sqlite3
import time
from contextlib import closing

import pytest

from tests.exporter.push.history_client import VICTORIA, add_samples, compare_with_server, count
from tests.exporter.push.proxy import proxy, server_samples
from tests.polling import eventually
from wattline.contract.history import HISTORY_FILE

AWAY = "http://127.0.0.1:9" + VICTORIA


def write(sender, value):
    """Write the value of `push <url>` in the history file."""
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
    add_samples(pushed.history, now, 10)
    position = {
        "t_ms": int(now + 4) * 1_000,
        "series_id": 1 << 40,
        "accepted": 25,
        "refused": 7,
        "dropped": 3,
    }
    write(pushed, json.dumps({**position, "checksum": "ab", "shards": [1, 2], "moves": 2}))
    pushed.restart()

    assert seconds(pushed, now) == [5, 6, 7, 8, 9]
    assert pushed.sample_counts() == {"accepted": 25, "refused": 7, "dropped": 3}
    assert pushed.history.backlog.rewind().done == (position["t_ms"], position["series_id"])


def test_push_position_of_older_version_has_defaults(sender):
    now = float(int(time.time()))
    pushed = sender(AWAY)
    add_samples(pushed.history, now, 10)
    write(pushed, json.dumps({"t_ms": int(now + 7) * 1_000, "series_id": 1 << 40}))
    pushed.restart()

    assert seconds(pushed, now) == [8, 9]
    assert pushed.sample_counts() == {"accepted": 0, "refused": 0, "dropped": 0}


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
def test_push_position_damaged_is_logged_and_all_is_sent(push_servers, sender, caplog, damaged):
    now = round(time.time(), 3)
    with proxy(push_servers.victoria) as between:
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 60, 30)
        pushed.push()
        write(pushed, damaged)
        pushed.restart()
        add_samples(pushed.history, now - 30, 30)
        pushed.push()

    (log_messages,) = [r.getMessage() for r in caplog.records if "damaged" in r.getMessage()]
    assert (
        f"the stored position of push {between.url}{VICTORIA} in the history is damaged"
        in log_messages
    )
    assert "all samples are sent again" in log_messages
    assert compare_with_server(push_servers.victoria, pushed, now) == 300
    assert pushed.sample_counts() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_push_queue_skips_series_with_damaged_labels(push_servers, sender, caplog):
    now = round(time.time(), 3)
    pushed = sender(push_servers.victoria + VICTORIA)
    add_samples(pushed.history, now - 60, 60)
    with closing(sqlite3.connect(pushed.folder / HISTORY_FILE)) as connection, connection:
        for number, damaged in enumerate(['{"gpu"', "[1]", b"\xff"], 1):
            connection.execute(
                "UPDATE label_template SET labels = ? WHERE id = ?", (damaged, number)
            )
    pushed.push()

    eventually(
        lambda: count(server_samples(push_servers.victoria, pushed.name, now)) == 2 * 60,
        "the other two series",
    )
    assert caplog.text.count("are damaged; the series is not pushed") == 3


def test_push_queue_new_server_gets_all_samples_and_it_is_logged(push_servers, sender, caplog):
    caplog.set_level("INFO")
    now = round(time.time(), 3)

    def log_messages():
        return [r.getMessage() for r in caplog.records if r.getMessage().startswith("pushing to ")]

    pushed = sender(push_servers.victoria + VICTORIA)
    add_samples(pushed.history, now - 60, 60)
    pushed.push()
    pushed.restart()
    pushed.push(until=lambda: len(log_messages()) == 2 and pushed.is_done())
    with proxy(push_servers.victoria) as between:
        pushed.url = between.url + VICTORIA
        pushed.restart()
        pushed.push()

    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 60))
    new = f"new server, the whole history is sent: 300 samples queued since {since}"
    first, again, other = log_messages()
    assert first == f"pushing to {push_servers.victoria}{VICTORIA}: {new}"
    assert again.startswith(f"pushing to {push_servers.victoria}{VICTORIA}: 300 samples queued")
    assert other == f"pushing to {between.url}{VICTORIA}: {new}"
    assert compare_with_server(push_servers.victoria, pushed, now) == 300
