"""Faults between history and server: lost samples are reported, others retried."""

import gzip
import time

import cramjam
import pytest

from exporter.push.client import PushTiming
from exporter.storage.history import KEEP_S
from tests.exporter.push.node import PROMETHEUS, VICTORIA, agrees, readings, remember
from tests.exporter.push.proxy import proxy
from tests.exporter.storage.test_disk_faults import FullDisk


def lines(caplog, text):
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_push_samples_deleted_by_the_history_are_reported(sender, caplog):
    """The counter and the recovery message report them, too."""
    caplog.set_level("INFO")
    now = round(time.time(), 3)
    with proxy("") as between:
        between.always = "away"
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - KEEP_S, 10)
        pushed.push(until=lambda: len(between.seen) > 1)
        for trim in range(1, 20):  # the history deletes a tenth each time
            pushed.history.add(now + 700 * trim, readings(trim), run_open=True)
        dropped = pushed.counted()["dropped"]
        seen = len(between.seen)
        pushed.push(until=lambda: len(between.seen) > seen + 1)
        shown = {reading.labels: reading.value for reading in pushed.pusher.readings() if reading.labels}
        between.always = 204
        pushed.push(until=lambda: lines(caplog, " recovered after ") and pushed.is_done())

    assert dropped == 50  # 10 seconds of 5 series
    assert shown["dropped",] == 50.0
    (said,) = lines(caplog, "or more samples before they were pushed")
    assert "has deleted 50 or more samples" in said
    (ended,) = lines(caplog, " recovered after ")
    assert ended.endswith("; the history deleted 50 samples meanwhile")
    assert pushed.counted() == {"accepted": 5 * 19, "refused": 0, "dropped": 50}


@pytest.mark.parametrize("status", [400, 301, 308, 409])
def test_push_misconfigured_server_loses_no_samples(both, sender, caplog, status):
    now = round(time.time(), 3)
    with proxy(both.victoria) as between:
        between.always = status
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 60, 60)
        pushed.push(until=lambda: lines(caplog, "cannot push"))
        assert pushed.counted() == {"accepted": 0, "refused": 0, "dropped": 0}
        assert pushed.done_ms == 0
        between.always = "pass"
        pushed.push()

    (said,) = lines(caplog, "cannot push")
    assert f"HTTP {status} (request " in said
    assert "; so says the test)" in said
    assert agrees(both.victoria, pushed, now) == 300
    assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_push_server_without_tls_is_reported_as_such(both, sender, caplog):
    pushed = sender(both.victoria.replace("http:", "https:") + VICTORIA)
    remember(pushed.history, time.time() - 60, 1)
    pushed.push(until=lambda: lines(caplog, "cannot push"))

    assert "check that the server expects TLS, else use http:// in --push.url" in lines(caplog, "cannot push")[0]


def test_push_refused_samples_are_dropped_once_others_were_accepted(both, sender, caplog):
    now = round(time.time(), 3)
    with proxy(both.victoria) as between:
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - 60, 30)
        pushed.push()
        between.always = 400
        remember(pushed.history, now - 30, 2)
        pushed.push()
        between.always = "pass"
        remember(pushed.history, now - 28, 28)
        pushed.push()

    assert pushed.counted() == {"accepted": 290, "refused": 10, "dropped": 0}
    assert len(lines(caplog, "refuses samples of")) == 1


@pytest.mark.parametrize(
    ("path", "changed"),
    [
        (VICTORIA, gzip.decompress),
        (PROMETHEUS, lambda body: body[:-3]),
        (PROMETHEUS, lambda _: bytes(cramjam.snappy.compress_raw(b"a"))),
    ],
)
def test_push_modified_body_is_not_a_refused_sample(both, sender, caplog, path, changed):
    """The real servers respond `snappy: corrupt input`, `unexpected EOF`, `gzip: invalid header`."""
    now = round(time.time(), 3)
    with proxy(both.of(path)) as between:
        pushed = sender(between.url + path)
        remember(pushed.history, now - 60, 30)
        pushed.push()
        remember(pushed.history, now - 30, 30)
        between.changes = changed
        pushed.push(until=lambda: lines(caplog, "cannot push"))
        between.changes = bytes
        pushed.push()

    assert "check whether a proxy changes the body" in lines(caplog, "cannot push")[0]
    assert agrees(both.of(path), pushed, now) == 300
    assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_push_slow_connection_reduces_the_batch(both, sender):
    """5,000 samples are 45 kB, which take 1.8 s; the timeout is half a second."""
    now = round(time.time(), 3)
    with proxy(both.prometheus) as between:
        between.bytes_per_s = 25_000
        pushed = sender(between.url + PROMETHEUS, timing=PushTiming(first_backoff_s=0.02, timeout_s=0.5))
        remember(pushed.history, now - 1_000, 1_000)
        pushed.push()

    assert agrees(both.prometheus, pushed, now) == 5_000
    assert pushed.counted() == {"accepted": 5_000, "refused": 0, "dropped": 0}
    assert between.sizes[0] > 25_000 > 2 * between.sizes[-1]


def test_push_connection_closed_for_large_body_reduces_the_batch(both, sender, caplog):
    """5,000 samples of remote write are 45 kB."""
    now = round(time.time(), 3)
    with proxy(both.prometheus) as between:
        between.most_bytes = 15_000
        pushed = sender(between.url + PROMETHEUS)
        remember(pushed.history, now - 1_000, 1_000)
        pushed.push()

    assert between.sizes[0] > 30_000
    assert len(lines(caplog, "cannot push")) == 1
    assert agrees(both.prometheus, pushed, now) == 5_000
    assert pushed.counted() == {"accepted": 5_000, "refused": 0, "dropped": 0}


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_push_full_disk_loses_and_doubles_no_sample(both, sender, tmp_path, caplog, path):
    now = round(time.time(), 3)
    disk = FullDisk(tmp_path / "disk")
    try:
        pushed = sender(both.of(path) + path, folder=disk.folder)
        remember(pushed.history, now - 60, 60)
        disk.begin(None)
        pushed.push(until=lambda: len(lines(caplog, "cannot use the history")) > 0)
        assert pushed.counted() == {"accepted": 0, "refused": 0, "dropped": 0}
        disk.mend()
        pushed.push()

        assert agrees(both.of(path), pushed, now) == 300
        assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}
        assert "check its disk and the free space" in lines(caplog, "cannot push")[0]
    finally:
        pushed.history.close()
        disk.close()
