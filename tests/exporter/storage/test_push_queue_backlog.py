"""What has not been pushed yet, as the history changes under it."""

import pytest

from exporter.contract.metrics import GPU_POWER
from exporter.model import Reading
from exporter.storage.history import KEEP_S, History

NOW = 1_790_000_000
EVER = 1 << 62
URL = "http://server/api/v1/write"


def opened(folder, url=URL):
    history = History(folder)
    history.follow(url)
    return history


@pytest.fixture
def kept(tmp_path):
    history = opened(tmp_path)
    yield history
    history.close()


def add(history, *seconds, run_open=False, ahead_s=0.0, from_s=None):
    """`ahead_s`: so far is the clock ahead of the one that no one sets."""
    for second in seconds:
        readings = [Reading(GPU_POWER, (gpu, ""), float(second)) for gpu in ("0", "1")]
        now_s = None if from_s is None else from_s + second
        history.add(NOW + second + ahead_s, readings, run_open=run_open, now_s=now_s)


def waiting(history, until_ms=None):
    """Seconds of what is to be pushed."""
    batch = history.backlog.oldest(history.settled_ms if until_ms is None else until_ms, 100_000)
    return sorted({sample.t_ms / 1_000 - NOW for sample in batch.samples})


def push(history, until_ms=None, outcome="accepted", sure=None):
    """As the pusher does with a server that answers. The seconds that were sent."""
    sent = waiting(history, until_ms)
    batch = history.backlog.oldest(history.settled_ms if until_ms is None else until_ms, 100_000)
    history.backlog.acknowledge(batch.samples, batch.position.moves, outcome, sure)
    return sent


def test_push_queue_seconds_before_a_run_are_pushed_in_order(kept):
    add(kept, *range(100))
    first = push(kept)
    assert first == [0, 15, 30]  # of the last minute nothing: a run may still put in each second

    add(kept, 100, run_open=True)
    assert push(kept) == list(range(39, 101))
    assert waiting(kept) == []


def test_push_queue_continues_after_restart_for_each_server(tmp_path, kept):
    add(kept, *range(10), run_open=True)
    batch = kept.backlog.oldest(EVER, 7)
    kept.backlog.acknowledge(batch.samples, batch.position.moves, "accepted")
    again, other = opened(tmp_path), opened(tmp_path, "http://other/api/v1/write")

    rest = again.backlog.oldest(again.settled_ms, 100)
    assert [s.t_ms for s in batch.samples + rest.samples] == [(NOW + n // 2) * 1_000 for n in range(20)]
    assert again.backlog.position().accepted == 7
    assert len(other.backlog.oldest(EVER, 100).samples) == 20
    again.close()
    other.close()


@pytest.mark.parametrize("step_s", [-3_600, -20, 20, 3_600])
def test_push_queue_clock_step_neither_repeats_nor_skips(kept, step_s):
    add(kept, *range(100), run_open=True, from_s=50.0)
    half = kept.backlog.oldest((NOW + 49) * 1_000, 1_000)
    kept.backlog.acknowledge(half.samples, half.position.moves, "accepted")
    add(kept, *range(100, 110), run_open=True, ahead_s=step_s, from_s=50.0)

    assert waiting(kept) == [second + step_s for second in range(50, 110)]


def test_push_queue_batch_in_flight_at_clock_step_is_sent_again(kept):
    add(kept, *range(10), run_open=True, from_s=50.0)
    batch = kept.backlog.oldest(kept.settled_ms, 1_000)
    add(kept, 10, run_open=True, ahead_s=20, from_s=50.0)
    kept.backlog.acknowledge(batch.samples, batch.position.moves, "accepted")

    assert waiting(kept) == [second + 20 for second in range(11)]


def test_push_queue_clock_back_after_days_ahead_sends_new_samples(kept):
    add(kept, *range(10), run_open=True, ahead_s=10 * 86_400.0)
    push(kept)
    add(kept, *range(10, 20), run_open=True)

    assert waiting(kept) == list(range(10, 20))


def test_push_queue_counts_deleted_unsent_samples(kept):
    add(kept, *range(10), run_open=True)
    push(kept, (NOW + 3) * 1_000)
    add(kept, *(KEEP_S + 700 * n for n in range(1, 20)))  # not all at once: a tenth each time that it looks

    assert kept.backlog.position().dropped == 2 * 6
    assert kept.backlog.position().accepted == 2 * 4


def test_push_queue_repeated_samples_count_once(kept):
    add(kept, *range(10), run_open=True)
    before = kept.backlog.position()
    push(kept, sure=before)
    kept.backlog.rewind()
    assert waiting(kept) == list(range(10))

    add(kept, 10, run_open=True)
    push(kept)
    assert kept.backlog.position().accepted == 22
    kept.backlog.rewind()
    assert waiting(kept) == []


@pytest.mark.parametrize("step_s", [-3_600, -20, 20, 3_600])
def test_push_queue_go_back_works_after_clock_step(kept, step_s):
    add(kept, *range(100), run_open=True, from_s=50.0)
    push(kept, (NOW + 39) * 1_000)
    push(kept, (NOW + 49) * 1_000, sure=kept.backlog.position())
    add(kept, *range(100, 110), run_open=True, ahead_s=step_s, from_s=50.0)
    kept.backlog.rewind()

    assert waiting(kept) == [second + step_s for second in range(40, 110)]


def test_push_queue_deleted_accepted_samples_are_not_dropped(kept):
    add(kept, *range(10), run_open=True)
    push(kept, sure=kept.backlog.position())
    kept.backlog.rewind()
    add(kept, *(KEEP_S + 700 * n for n in range(1, 20)))

    assert waiting(kept, EVER)[0] > 0
    assert kept.backlog.position().dropped == 0
    assert kept.backlog.position().accepted == 20
