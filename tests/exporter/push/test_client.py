"""An hour of history, pushed with outages to real VictoriaMetrics and Prometheus."""

import time

import pytest

from tests import servers
from tests.exporter.push.history_client import (
    PROMETHEUS,
    VICTORIA,
    PushNode,
    add_samples,
    compare_with_server,
    count,
    times,
)
from tests.exporter.push.proxy import lines, proxy, server_samples, stored_samples
from tests.polling import eventually
from wattline_exporter.push.client import MAX_SAMPLES
from wattline_exporter.storage.push_queue import split_samples


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_push_after_outage_and_restart_delivers_each_sample_once(push_servers, sender, path):
    now = round(time.time(), 3)
    with proxy(push_servers.of(path)) as between:
        pushed = sender(between.url + path)
        add_samples(pushed.history, now - 3_660, 60)
        pushed.push()
        assert pushed.sample_counts()["accepted"] == 300
        between.always = "away"
        add_samples(pushed.history, now - 3_600, 1_800)
        pushed.push(until=lambda: len(between.faults_applied) > 3)
        assert pushed.position_ms < (now - 3_600) * 1_000
        pushed.restart()
        add_samples(pushed.history, now - 1_800, 1_800)
        pushed.push(until=lambda: len(between.faults_applied) > 6)
        between.faults = [500, "garbage", 502, "page", 429, 404, "pass", "away", 401, 503]
        between.always = "pass"
        pushed.push()

    assert compare_with_server(push_servers.of(path), pushed, now) == 5 * 3_660
    assert pushed.sample_counts()["refused"] == pushed.sample_counts()["dropped"] == 0
    assert pushed.sample_counts()["accepted"] == 5 * 3_660
    assert max(between.sizes) < 2_000_000


@pytest.mark.parametrize("path", [VICTORIA, PROMETHEUS])
def test_push_unacknowledged_samples_are_sent_again(push_servers, sender, path):
    now = round(time.time(), 3)
    with proxy(push_servers.of(path)) as between:
        pushed = sender(between.url + path)
        add_samples(pushed.history, now - 600, 300)
        between.faults = ["cut", "cut"]
        pushed.push()
        add_samples(pushed.history, now - 300, 300)
        between.faults = ["cut"]
        pushed.restart()
        pushed.push()

    assert between.faults_applied.count("cut") == 3
    assert compare_with_server(push_servers.of(path), pushed, now) == 5 * 600


def test_push_refused_series_does_not_block_others(push_servers, sender, caplog):
    now = round(time.time(), 3)
    with proxy(push_servers.victoria) as between:
        between.refuses = lambda body: any('gpu="1",uuid="GPU-1"' in line for line in lines(body))
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 60, 40)
        pushed.push()

    stored = stored_samples(pushed.folder)
    kept = {
        labels: samples for labels, samples in stored.items() if ("uuid", "GPU-1") not in labels
    }
    eventually(
        lambda: times(server_samples(push_servers.victoria, pushed.name, now)) == times(kept),
        "the other series",
    )
    assert pushed.sample_counts() == {"accepted": 160, "refused": 40, "dropped": 0}
    (message,) = [r.getMessage() for r in caplog.records if "refuses samples" in r.getMessage()]
    assert "out of order sample" in message
    assert "storage.tsdb.out_of_order_time_window" in message


def test_push_without_out_of_order_window_delivers_accepted_samples(tmp_path, sender):
    """After a current sample Prometheus refuses samples older than an hour, half of a 2 h block."""
    now = round(time.time(), 3)
    (tmp_path / "server").mkdir()
    with servers.prometheus(
        tmp_path / "server", [], flags=["--web.enable-remote-write-receiver"]
    ) as prometheus:
        other = PushNode(tmp_path / "server", prometheus + PROMETHEUS, "other").open()
        add_samples(other.history, now, 1)
        other.push()
        other.history.close()
        pushed = sender(prometheus + PROMETHEUS)
        add_samples(pushed.history, now - 5_400, 5_390)
        pushed.push()
        received = server_samples(prometheus, pushed.name, now)

    counts = pushed.sample_counts()
    oldest_ms = round(now * 1_000) - 3_600_000
    expected = {
        labels: kept
        for labels, samples in stored_samples(pushed.folder).items()
        if (kept := [sample for sample in samples if sample[0] >= oldest_ms])
    }
    missing = {
        labels: sorted(set(samples) - set(received.get(labels, [])))
        for labels, samples in expected.items()
    }
    assert counts["accepted"] + counts["refused"] == 5 * 5_390
    assert counts["accepted"] == count(received)
    # the batch on the border is halved six times at least: of its 2,000 seconds at most 32 more may
    # be lost
    assert max(map(len, missing.values())) <= 32
    assert all(set(samples) <= set(expected[labels]) for labels, samples in received.items())


def test_push_too_large_response_reduces_the_batch(push_servers, sender):
    now = round(time.time(), 3)
    with proxy(push_servers.victoria) as between:
        pushed = sender(between.url + VICTORIA)
        add_samples(pushed.history, now - 600, 600)
        between.faults = [413, 413]
        pushed.push()

    assert compare_with_server(push_servers.victoria, pushed, now) == 3_000
    assert between.sizes[2] < between.sizes[0] / 3
    assert pushed.sample_counts() == {"accepted": 3_000, "refused": 0, "dropped": 0}


def test_push_retry_after_delays_the_next_request(push_servers, sender):
    now = round(time.time(), 3)
    with proxy(push_servers.victoria) as between:
        between.faults, between.retry_after = [503], "3"
        waiting = sender(between.url + VICTORIA)
        add_samples(waiting.history, now, 10)
        asked_s = time.monotonic()
        waiting.push()
        again_s = time.monotonic()

    assert between.faults_applied == [503, "pass"]
    assert again_s - asked_s >= 3.0


def test_push_batch_size_is_limited(tmp_path, sender):
    pushed = sender("http://127.0.0.1:9/api/v1/write")
    add_samples(pushed.history, time.time() - 3_600, 3_000)
    batch = pushed.history.backlog.oldest(pushed.history.settled_ms, MAX_SAMPLES)

    assert len(batch.samples) == MAX_SAMPLES
    assert batch.samples == sorted(batch.samples)


def test_split_samples_splits_by_time_then_by_series(sender):
    pushed = sender("http://127.0.0.1:9/api/v1/write")
    add_samples(pushed.history, 1_790_000_000, 5)
    samples = pushed.history.backlog.oldest(pushed.history.settled_ms, MAX_SAMPLES).samples

    older, newer = split_samples(samples)
    assert older + newer == samples
    assert {s.t_ms for s in older}.isdisjoint({s.t_ms for s in newer})
    assert [len(half) for half in split_samples(samples[:5])] == [2, 3]
    assert [len(half) for half in split_samples(samples[:2])] == [1, 1]
