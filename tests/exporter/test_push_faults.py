"""Faults between a history and a server: what is lost is declared, and where nothing need be lost it is waited."""

import gzip
import time

import pytest

from exporter.push.client import Pace
from exporter.push.encoding import snappy
from exporter.storage.history import KEEP_S
from tests.exporter.push_node import PROMETHEUS, VICTORIA, agrees, readings, remember
from tests.exporter.push_proxy import proxy
from tests.exporter.storage.test_disk_faults import FullDisk


def lines(caplog, text):
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_what_the_history_dropped_before_it_could_be_sent_is_declared_while_the_server_is_away(sender, caplog):
    """Also by the counter, and in the end by its number."""
    caplog.set_level("INFO")
    now = round(time.time(), 3)
    with proxy("") as between:
        between.always = "away"
        pushed = sender(between.url + VICTORIA)
        remember(pushed.history, now - KEEP_S, 10)
        pushed.push(until=lambda: len(between.seen) > 1)
        for trim in range(1, 20):  # it drops a tenth each time
            pushed.history.add(now + 700 * trim, readings(trim), run_open=True)
        dropped = pushed.counted()["dropped"]
        seen = len(between.seen)
        pushed.push(until=lambda: len(between.seen) > seen + 1)
        shown = {reading.labels: reading.value for reading in pushed.pusher.readings() if reading.labels}
        between.always = 204
        pushed.push(until=lambda: lines(caplog, " again, after ") and pushed.is_done())

    assert dropped == 50  # 10 seconds of 5 series
    assert shown["dropped",] == 50.0
    (said,) = lines(caplog, "samples or more are too old")
    assert said.startswith("50 samples")
    (ended,) = lines(caplog, " again, after ")
    assert ended.endswith("; 50 samples were dropped by the history before")
    assert pushed.counted() == {"accepted": 5 * 19, "refused": 0, "dropped": 50}


@pytest.mark.parametrize("status", [400, 301, 308, 409])
def test_a_server_that_never_took_any_sample_loses_none_while_it_is_set_up_wrongly(both, sender, caplog, status):
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


def test_a_server_without_tls_is_not_said_to_have_a_wrong_certificate(both, sender, caplog):
    pushed = sender(both.victoria.replace("http:", "https:") + VICTORIA)
    remember(pushed.history, time.time() - 60, 1)
    pushed.push(until=lambda: lines(caplog, "cannot push"))

    assert "does it speak TLS there? else give --push.url http://" in lines(caplog, "cannot push")[0]


def test_a_server_that_took_samples_may_refuse_others_for_good(both, sender, caplog):
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
    [(VICTORIA, gzip.decompress), (PROMETHEUS, lambda body: body[:-3]), (PROMETHEUS, lambda _: snappy(b"a"))],
)
def test_bodies_that_something_between_changes_are_not_taken_for_samples_that_are_refused(
    both, sender, caplog, path, changed
):
    """The real servers say so: `snappy: corrupt input`, `unexpected EOF`, `gzip: invalid header`."""
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

    assert "does a proxy before the server change the body" in lines(caplog, "cannot push")[0]
    assert agrees(both.of(path), pushed, now) == 300
    assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}


def test_a_line_too_slow_for_a_whole_batch_gets_less_at_once(both, sender):
    """5,000 samples are 90 kB, which take 1.8 s; the answer is waited for half a second."""
    now = round(time.time(), 3)
    with proxy(both.prometheus) as between:
        between.bytes_per_s = 50_000
        pushed = sender(between.url + PROMETHEUS, pace=Pace(first_wait_s=0.02, timeout_s=0.5))
        remember(pushed.history, now - 1_000, 1_000)
        pushed.push()

    assert agrees(both.prometheus, pushed, now) == 5_000
    assert pushed.counted() == {"accepted": 5_000, "refused": 0, "dropped": 0}
    assert between.sizes[0] > 50_000 > 2 * between.sizes[-1]


def test_a_server_that_hangs_up_on_a_body_too_large_gets_less_at_once(both, sender, caplog):
    """5,000 samples of remote write are 90 kB."""
    now = round(time.time(), 3)
    with proxy(both.prometheus) as between:
        between.most_bytes = 30_000
        pushed = sender(between.url + PROMETHEUS)
        remember(pushed.history, now - 1_000, 1_000)
        pushed.push()

    assert between.sizes[0] > 60_000
    assert len(lines(caplog, "cannot push")) == 1
    assert agrees(both.prometheus, pushed, now) == 5_000
    assert pushed.counted() == {"accepted": 5_000, "refused": 0, "dropped": 0}


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_a_disk_that_takes_no_position_makes_nothing_be_lost_or_counted_twice(both, sender, tmp_path, caplog, path):
    now = round(time.time(), 3)
    disk = FullDisk(tmp_path / "disk")
    try:
        pushed = sender(both.of(path) + path, folder=disk.folder)
        remember(pushed.history, now - 60, 60)
        disk.begin(None)
        pushed.push(until=lambda: len(lines(caplog, "the history cannot be used")) > 0)
        assert pushed.counted() == {"accepted": 0, "refused": 0, "dropped": 0}
        disk.mend()
        pushed.push()

        assert agrees(both.of(path), pushed, now) == 300
        assert pushed.counted() == {"accepted": 300, "refused": 0, "dropped": 0}
        assert "see that its disk is well and has room" in lines(caplog, "cannot push")[0]
    finally:
        pushed.history.close()
        disk.close()
