"""Unsent samples while the history changes."""

import pytest

from wattline.contract.metrics import GPU_POWER
from wattline_exporter.sensors.readings import Reading
from wattline_exporter.storage.history import KEEP_S, History

NOW = 1_790_000_000
EVER = 1 << 62
URL = "http://server/api/v1/write"


def opened(folder, url=URL):
    history = History(folder)
    history.follow(url)
    return history


@pytest.fixture
def stored(tmp_path):
    history = opened(tmp_path)
    yield history
    history.close()


def add(history, *seconds, run_open=False, ahead_s=0.0, from_s=None):
    """Add samples; `ahead_s` is the offset of the wall clock from the monotonic clock."""
    for second in seconds:
        readings = [Reading(GPU_POWER, (gpu, ""), float(second)) for gpu in ("0", "1")]
        now_s = None if from_s is None else from_s + second
        history.add(NOW + second + ahead_s, readings, run_open=run_open, now_s=now_s)


def pending_seconds(history, until_ms=None):
    """Return the times of the samples to be pushed, in seconds."""
    batch = history.backlog.oldest(history.settled_ms if until_ms is None else until_ms, 100_000)
    return sorted({sample.t_ms / 1_000 - NOW for sample in batch.samples})


def push(history, until_ms=None, outcome="accepted", sure=None):
    """Send as with a responding server and return the seconds of the samples sent."""
    sent = pending_seconds(history, until_ms)
    batch = history.backlog.oldest(history.settled_ms if until_ms is None else until_ms, 100_000)
    history.backlog.acknowledge(batch.samples, batch.position.moves, outcome, sure)
    return sent


def test_push_queue_seconds_before_a_run_are_pushed_in_order(stored):
    add(stored, *range(100))
    first = push(stored)
    assert first == [
        0,
        15,
        30,
    ]  # samples of the last minute are not final: a run may still add each second

    add(stored, 100, run_open=True)
    assert push(stored) == list(range(39, 101))
    assert pending_seconds(stored) == []


def test_push_queue_continues_after_restart_for_each_server(tmp_path, stored):
    add(stored, *range(10), run_open=True)
    batch = stored.backlog.oldest(EVER, 7)
    stored.backlog.acknowledge(batch.samples, batch.position.moves, "accepted")
    again, other = opened(tmp_path), opened(tmp_path, "http://other/api/v1/write")

    rest = again.backlog.oldest(again.settled_ms, 100)
    assert [s.t_ms for s in batch.samples + rest.samples] == [
        (NOW + n // 2) * 1_000 for n in range(20)
    ]
    assert again.backlog.position().accepted == 7
    assert len(other.backlog.oldest(EVER, 100).samples) == 20
    again.close()
    other.close()


@pytest.mark.parametrize("step_s", [-3_600, -20, 20, 3_600])
def test_push_queue_clock_step_neither_repeats_nor_skips(stored, step_s):
    add(stored, *range(100), run_open=True, from_s=50.0)
    half = stored.backlog.oldest((NOW + 49) * 1_000, 1_000)
    stored.backlog.acknowledge(half.samples, half.position.moves, "accepted")
    add(stored, *range(100, 110), run_open=True, ahead_s=step_s, from_s=50.0)

    assert pending_seconds(stored) == [second + step_s for second in range(50, 110)]


def test_push_queue_batch_in_flight_at_clock_step_is_sent_again(stored):
    add(stored, *range(10), run_open=True, from_s=50.0)
    batch = stored.backlog.oldest(stored.settled_ms, 1_000)
    add(stored, 10, run_open=True, ahead_s=20, from_s=50.0)
    stored.backlog.acknowledge(batch.samples, batch.position.moves, "accepted")

    assert pending_seconds(stored) == [second + 20 for second in range(11)]


def test_push_queue_clock_back_after_days_ahead_sends_new_samples(stored):
    add(stored, *range(10), run_open=True, ahead_s=10 * 86_400.0)
    push(stored)
    add(stored, *range(10, 20), run_open=True)

    assert pending_seconds(stored) == list(range(10, 20))


def test_push_queue_counts_deleted_unsent_samples(stored):
    add(stored, *range(10), run_open=True)
    push(stored, (NOW + 3) * 1_000)
    add(stored, *(KEEP_S + 700 * n for n in range(1, 20)))  # a tenth at each cleanup

    assert stored.backlog.position().dropped == 2 * 6
    assert stored.backlog.position().accepted == 2 * 4


def test_push_queue_repeated_samples_count_once(stored):
    add(stored, *range(10), run_open=True)
    before = stored.backlog.position()
    push(stored, sure=before)
    stored.backlog.rewind()
    assert pending_seconds(stored) == list(range(10))

    add(stored, 10, run_open=True)
    push(stored)
    assert stored.backlog.position().accepted == 22
    stored.backlog.rewind()
    assert pending_seconds(stored) == []


@pytest.mark.parametrize("step_s", [-3_600, -20, 20, 3_600])
def test_push_queue_go_back_works_after_clock_step(stored, step_s):
    add(stored, *range(100), run_open=True, from_s=50.0)
    push(stored, (NOW + 39) * 1_000)
    push(stored, (NOW + 49) * 1_000, sure=stored.backlog.position())
    add(stored, *range(100, 110), run_open=True, ahead_s=step_s, from_s=50.0)
    stored.backlog.rewind()

    assert pending_seconds(stored) == [second + step_s for second in range(40, 110)]


def test_push_queue_deleted_accepted_samples_are_not_dropped(stored):
    add(stored, *range(10), run_open=True)
    push(stored, sure=stored.backlog.position())
    stored.backlog.rewind()
    add(stored, *(KEEP_S + 700 * n for n in range(1, 20)))

    assert pending_seconds(stored, EVER)[0] > 0
    assert stored.backlog.position().dropped == 0
    assert stored.backlog.position().accepted == 20
