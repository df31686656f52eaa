"""Faults between history and server: lost samples are reported, others retried."""

import gzip
import time

import cramjam
import pytest

from tests.exporter.push.history_client import (
    PROMETHEUS,
    VICTORIA,
    add_samples,
    compare_with_server,
    readings,
)
from tests.exporter.push.proxy import proxy
from tests.exporter.storage.test_disk_faults import FullDisk
from wattline_exporter.push.client import PushTiming
from wattline_exporter.storage.history import KEEP_S


def lines(caplog, text):
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_push_samples_deleted_by_the_history_are_reported(sender, caplog):
    """The counter and the recovery message report them, too."""
    caplog.set_level("INFO")
    now = round(time.time(), 3)
    with proxy("") as between:
        between.always = "away"
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - KEEP_S, 10)
        pushed.push(until=lambda: len(between.faults_applied) > 1)
        for trim in range(1, 20):  # the history deletes a tenth each time
            pushed.history.add(now + 700 * trim, readings(trim), run_open=True)
        dropped = pushed.sample_counts()["dropped"]
        count_before = len(between.faults_applied)
        pushed.push(until=lambda: len(between.faults_applied) > count_before + 1)
        counters = {
            reading.labels: reading.value for reading in pushed.client.readings() if reading.labels
        }
        between.always = 204
        pushed.push(until=lambda: lines(caplog, " recovered after ") and pushed.is_done())

    assert dropped == 50  # 10 seconds of 5 series
    assert counters["dropped",] == 50.0
    (message,) = lines(caplog, "or more samples before they were pushed")
    assert "has deleted 50 or more samples" in message
    (ended,) = lines(caplog, " recovered after ")
    assert ended.endswith("; the history deleted 50 samples meanwhile")
    assert pushed.sample_counts() == {"accepted": 5 * 19, "refused": 0, "dropped": 50}


@pytest.mark.parametrize("status", [400, 301, 308, 409])
def test_push_misconfigured_server_loses_no_samples(push_servers, sender, caplog, status):
    now = round(time.time(), 3)
    with proxy(push_servers.victoria) as between:
        between.always = status
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 60, 60)
        pushed.push(until=lambda: lines(caplog, "cannot push"))
        assert pushed.sample_counts() == {"accepted": 0, "refused": 0, "dropped": 0}
        assert pushed.position_ms == 0
        between.always = "pass"
        pushed.push()

    (message,) = lines(caplog, "cannot push")
    assert f"HTTP {status} (request " in message
    assert "; so says the test)" in message
    assert compare_with_server(push_servers.victoria, pushed, now) == 300
    assert pushed.sample_counts() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_push_server_without_tls_is_reported_as_such(push_servers, sender, caplog):
    pushed = sender(push_servers.victoria.replace("http:", "https:") + VICTORIA)
    add_samples(pushed.history, time.time() - 60, 1)
    pushed.push(until=lambda: lines(caplog, "cannot push"))

    assert (
        "check that the server expects TLS, else use http:// in --push.url"
        in lines(caplog, "cannot push")[0]
    )


def test_push_refused_samples_are_dropped_once_others_were_accepted(push_servers, sender, caplog):
    now = round(time.time(), 3)
    with proxy(push_servers.victoria) as between:
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 60, 30)
        pushed.push()
        between.always = 400
        add_samples(pushed.history, now - 30, 2)
        pushed.push()
        between.always = "pass"
        add_samples(pushed.history, now - 28, 28)
        pushed.push()

    assert pushed.sample_counts() == {"accepted": 290, "refused": 10, "dropped": 0}
    assert len(lines(caplog, "refuses samples of")) == 1


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        (VICTORIA, gzip.decompress),
        (PROMETHEUS, lambda body: body[:-3]),
        (PROMETHEUS, lambda _: bytes(cramjam.snappy.compress_raw(b"a"))),
    ],
)
def test_push_modified_body_is_not_a_refused_sample(push_servers, sender, caplog, path, changed):
    """The real servers respond `snappy: corrupt input`, `unexpected EOF`, `gzip: invalid
    header`.
    """
    now = round(time.time(), 3)
    with proxy(push_servers.of(path)) as between:
        pushed = sender(between.url + path)
        add_samples(pushed.history, now - 60, 30)
        pushed.push()
        add_samples(pushed.history, now - 30, 30)
        between.changes = changed
        pushed.push(until=lambda: lines(caplog, "cannot push"))
        between.changes = bytes
        pushed.push()

    assert "check whether a proxy changes the body" in lines(caplog, "cannot push")[0]
    assert compare_with_server(push_servers.of(path), pushed, now) == 300
    assert pushed.sample_counts() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_push_slow_connection_reduces_the_batch(push_servers, sender):
    """5,000 samples are 45 kB, which take 1.8 s; the timeout is half a second."""
    now = round(time.time(), 3)
    with proxy(push_servers.prometheus) as between:
        between.bytes_per_s = 25_000
        pushed = sender(
            between.url + PROMETHEUS, timing=PushTiming(first_backoff_s=0.02, timeout_s=0.5)
        )
        add_samples(pushed.history, now - 1_000, 1_000)
        pushed.push()

    assert compare_with_server(push_servers.prometheus, pushed, now) == 5_000
    assert pushed.sample_counts() == {"accepted": 5_000, "refused": 0, "dropped": 0}
    assert between.sizes[0] > 25_000 > 2 * between.sizes[-1]


def test_push_connection_closed_for_large_body_reduces_the_batch(push_servers, sender, caplog):
    """5,000 samples of remote write are 45 kB."""
    now = round(time.time(), 3)
    with proxy(push_servers.prometheus) as between:
        between.most_bytes = 15_000
        pushed = sender(between.url + PROMETHEUS)
        add_samples(pushed.history, now - 1_000, 1_000)
        pushed.push()

    assert between.sizes[0] > 30_000
    assert len(lines(caplog, "cannot push")) == 1
    assert compare_with_server(push_servers.prometheus, pushed, now) == 5_000
    assert pushed.sample_counts() == {"accepted": 5_000, "refused": 0, "dropped": 0}


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_push_full_disk_loses_and_doubles_no_sample(push_servers, sender, tmp_path, caplog, path):
    now = round(time.time(), 3)
    disk = FullDisk(tmp_path / "disk")
    try:
        pushed = sender(push_servers.of(path) + path, folder=disk.folder)
        add_samples(pushed.history, now - 60, 60)
        disk.begin(None)
        pushed.push(until=lambda: len(lines(caplog, "cannot use the history")) > 0)
        assert pushed.sample_counts() == {"accepted": 0, "refused": 0, "dropped": 0}
        disk.repair()
        pushed.push()

        assert compare_with_server(push_servers.of(path), pushed, now) == 300
        assert pushed.sample_counts() == {"accepted": 300, "refused": 0, "dropped": 0}
        assert "check its disk and the free space" in lines(caplog, "cannot push")[0]
    finally:
        pushed.history.close()
        disk.close()


def test_push_counts_before_the_position_is_read_are_absent(sender):
    pushed = sender("http://127.0.0.1:9" + VICTORIA)

    assert list(pushed.client.readings()) == []
