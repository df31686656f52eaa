import sqlite3
from itertools import pairwise

import pytest

from wattline.contract import history as contract
from wattline.contract.metrics import GPU_POWER, RUN_INFO
from wattline_exporter.sensors.readings import Reading
from wattline_exporter.storage.history import KEEP_S, MAX_WAITING, History

NOW = 1_790_000_000.0


@pytest.fixture
def stored(tmp_path):
    history = History(tmp_path)
    yield history
    history.close()


def power(watts, gpu="0"):
    return Reading(GPU_POWER, (gpu, f"GPU-{gpu}"), watts)


def each_second(history, begin_s, end_s, *, run_open=False):
    for second in range(int(begin_s), int(end_s)):
        history.add(NOW + second, [power(float(second))], run_open=run_open)


def times(history):
    connection = contract.open_read_only(history.path)
    result = [
        t_ms / 1_000 - NOW
        for (t_ms,) in connection.execute("SELECT DISTINCT t_ms FROM samples ORDER BY t_ms")
    ]
    connection.close()
    return result


def read(history, query, at):
    connection = contract.open_read_only(history.path)
    try:
        return contract.select_series(connection, contract.parse_query(query), at)
    finally:
        connection.close()


def test_history_file_has_the_schema_of_the_contract(stored):
    stored.add(
        NOW,
        [power(300.0), Reading(RUN_INFO, ("r-1", "w"), 1.0, (("label_b", 'x"'),))],
        run_open=True,
    )
    connection = contract.open_read_only(stored.path)
    columns = {
        name: [column[1] for column in connection.execute(f"PRAGMA table_info({name})")]
        for name in ("meta", "series", "samples")
    }
    names = connection.execute("SELECT name, labels FROM series ORDER BY name").fetchall()
    samples = connection.execute("SELECT t_ms, value FROM samples ORDER BY value").fetchall()
    connection.close()

    assert columns == {
        "meta": ["key", "value"],
        "series": ["id", "name", "labels"],
        "samples": ["t_ms", "series_id", "value"],
    }
    assert names == [
        ("wattline_gpu_power_watts", '{"gpu":"0","uuid":"GPU-0"}'),
        ("wattline_run_info", '{"label_b":"x\\"","run_id":"r-1","workload":"w"}'),
    ]
    assert samples == [(1_790_000_000_000, 1.0), (1_790_000_000_000, 300.0)]


def test_history_without_runs_keeps_a_sample_per_15_s(stored):
    each_second(stored, 0, 61)

    assert times(stored) == [0, 15, 30, 45, 60]


def test_history_keeps_every_second_a_minute_around_a_run(stored):
    each_second(stored, 0, 200)
    each_second(stored, 200, 210, run_open=True)
    each_second(stored, 210, 400)
    result = times(stored)

    assert [t for t in result if 140 <= t <= 269] == list(range(140, 270))
    assert all(b - a == 15 for a, b in pairwise(t for t in result if t < 135))
    assert all(b - a == 15 for a, b in pairwise(t for t in result if t > 290))


def test_history_deletes_samples_older_than_30_days(stored):
    each_second(stored, 0, 20)
    stored.add(NOW + KEEP_S + 10, [power(1.0, "1")], run_open=False)

    assert times(stored) == [15, KEEP_S + 10]


def test_history_deletes_series_without_samples(stored):
    stored.add(NOW, [power(1.0, "0")], run_open=True)
    stored.add(NOW + 2 * KEEP_S, [power(1.0, "1")], run_open=True)
    stored.add(NOW + 2 * KEEP_S + 1, [power(1.0, "1")], run_open=True)

    assert [
        series.labels["gpu"]
        for series in read(stored, "wattline_gpu_power_watts[90d]", NOW + 2 * KEEP_S + 1)
    ] == ["1"]


def test_history_too_large_deletes_oldest_samples(tmp_path):
    history = History(tmp_path, keep_bytes=200_000)
    for second in range(1_300):
        history.add(
            NOW + second, [power(float(second), str(gpu)) for gpu in range(20)], run_open=True
        )
    result = times(history)
    history.close()

    assert result[-1] == 1_299
    assert 0 < result[0] < 1_290
    assert len(result) > 200


def test_history_clock_set_back_continues(stored):
    each_second(stored, 10_000, 10_020)
    each_second(stored, 0, 31)

    assert [t for t in times(stored) if t < 100] == [0, 15, 30]


BOOTED = NOW - 500.0


def add_on_clocks(history, now_s, set_by_s):
    """Add a sample at `now_s` after boot, with the wall clock `set_by_s` off."""
    history.add(BOOTED + now_s + set_by_s, [power(now_s)], run_open=True, now_s=now_s)


def all_samples(history):
    """Return (time, value) of all samples in order."""
    series = read(history, "wattline_gpu_power_watts[90d]", NOW + 100_000)
    return [(round(t - BOOTED, 3), value) for t, value in series[0].samples]


@pytest.mark.parametrize(
    "steps", [[3_600.0], [-3_600.0], [3_600.0, 0.0], [-3_600.0, 0.0], [-2.5], [2.5, -30.0]]
)
def test_history_clock_step_moves_recent_samples_in_order(stored, steps):
    set_by_s, now_s = 0.0, 10.0
    for step_s in [0.0, *steps]:
        set_by_s = step_s
        for _ in range(10):
            add_on_clocks(stored, now_s, set_by_s)
            now_s += 1.0

    assert all_samples(stored) == [
        (value + set_by_s, value) for value in [10.0 + n for n in range(10 * (len(steps) + 1))]
    ]


def test_history_system_sleep_is_not_a_clock_step(stored):
    add_on_clocks(stored, 10.0, 0.0)
    add_on_clocks(stored, 610.0, 0.0)

    assert all_samples(stored) == [(10.0, 10.0), (610.0, 610.0)]


def test_history_clock_drift_moves_nothing(stored):
    for n in range(20):
        add_on_clocks(stored, 10.0 + n, 0.1 * n)

    assert [t for t, _ in all_samples(stored)] == [
        pytest.approx(10.0 + 1.1 * n, abs=0.002) for n in range(20)
    ]


def test_history_step_of_a_year_moves_nothing(stored):
    add_on_clocks(stored, 10.0, 0.0)
    add_on_clocks(stored, 11.0, -50 * 365 * 86_400.0)
    add_on_clocks(stored, 12.0, 0.0)

    assert [value for _, value in all_samples(stored)] == [10.0, 12.0]


DAY_S = 86_400.0
HOUR_S = 3_600.0


def test_history_small_step_after_a_large_one_moves_the_later_samples(stored):
    add_on_clocks(stored, 10.0, 0.0)
    for n in range(3):
        add_on_clocks(stored, 11.0 + n, -40 * DAY_S)
    add_on_clocks(stored, 14.0, -40 * DAY_S + 60.0)

    moved = [(value - 40 * DAY_S + 60.0, value) for value in (11.0, 12.0, 13.0, 14.0)]
    assert all_samples(stored)[:4] == moved


def test_history_one_sample_40_days_ahead_deletes_nothing(stored):
    for n in range(200):
        add_on_clocks(stored, 15.0 * n, 0.0)
    add_on_clocks(stored, 15.0 * 200, 40 * DAY_S)
    add_on_clocks(stored, 15.0 * 201, 0.0)

    assert [value for _, value in all_samples(stored)] == [15.0 * n for n in (*range(200), 201)]


def test_history_lasting_wrong_clock_deletes_a_tenth_after_an_hour(stored):
    for n in range(200):
        add_on_clocks(stored, 15.0 * n, 0.0)

    def samples_left_after(since_s):
        add_on_clocks(stored, 15.0 * 200 + since_s, 40 * DAY_S)
        return sum(t < 3_000 for t in (t + NOW - BOOTED for t in times(stored)))

    # 10 % of 201 samples and those of the wrong clock: the 21 oldest; then of 183 the 19 oldest
    assert [samples_left_after(since_s) for since_s in (0.0, 1_800.0, 3_590.0)] == [200, 200, 200]
    assert samples_left_after(HOUR_S + 600.0) == 200 - 21
    assert samples_left_after(HOUR_S + 1_200.0) == 200 - 21 - 19


def test_history_future_samples_do_not_empty_a_large_file(tmp_path):
    history = History(tmp_path, keep_bytes=200_000)
    history.add(NOW + 365 * DAY_S, [power(0.0)], run_open=True)
    for second in range(1_300):
        history.add(
            NOW + second, [power(float(second), str(gpu)) for gpu in range(20)], run_open=True
        )
    result = times(history)
    history.close()

    assert len([t for t in result if t < 1_300]) > 200


def test_history_step_overwrites_older_exporters_samples(tmp_path):
    former = History(tmp_path)
    for n in range(100):
        add_on_clocks(former, 100.0 + n, 0.0)
    former.close()
    history = History(tmp_path)
    for n in range(5):
        add_on_clocks(history, 200.0 + n, 0.0)
    add_on_clocks(history, 205.0, -50.0)
    result = all_samples(history)
    history.close()

    assert result == [
        *((100.0 + n, 100.0 + n) for n in range(50)),
        *((150.0 + n, 200.0 + n) for n in range(6)),
    ]


def test_history_run_during_full_disk_is_written_later(stored):
    stored.add(NOW, [power(0.0)], run_open=True)
    blocker = sqlite3.connect(stored.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    stored._connection.execute("PRAGMA busy_timeout = 0")
    for second in (1, 2):
        with pytest.raises(sqlite3.OperationalError):
            stored.add(
                NOW + second, [power(1.0), Reading(RUN_INFO, ("new", "w"), 1.0)], run_open=True
            )
    blocker.execute("COMMIT")
    blocker.close()
    stored.add(NOW + 3, [power(2.0)], run_open=True)

    (info,) = read(stored, 'wattline_run_info{run_id="new"}[60s]', NOW + 3)
    assert [t - NOW for t, _ in info.samples] == [1, 2]


def test_history_little_space_takes_a_part_of_the_queue(stored):
    """After an outage, not all queued seconds fit into one transaction on a small disk."""

    def limit_pages(most):
        stored._connection.execute(f"PRAGMA max_page_count = {most}").fetchall()

    def add(second):
        stored.add(
            NOW + second, [power(float(second), str(gpu)) for gpu in range(300)], run_open=True
        )

    add(0)
    pages = stored._connection.execute("PRAGMA page_count").fetchone()[0]
    limit_pages(pages)
    for second in range(1, 41):
        with pytest.raises(sqlite3.OperationalError, match="full"):
            add(second)
    limit_pages(pages + 30)  # 120 kB: about 6,000 of 12,000 samples
    with pytest.raises(sqlite3.OperationalError, match="full"):
        add(41)

    assert times(stored) == list(range(21))
    limit_pages(pages + 1_000)
    add(42)
    assert times(stored) == list(range(43))


def test_history_full_disk_queue_is_limited(tmp_path):
    history = History(tmp_path)
    history.add(NOW, [power(0.0)], run_open=True)
    blocker = sqlite3.connect(history.path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    history._connection.execute("PRAGMA busy_timeout = 0")
    for second in range(1, MAX_WAITING + 100):
        with pytest.raises(sqlite3.OperationalError):
            history.add(NOW + second, [power(float(second))], run_open=True)
    blocker.execute("COMMIT")
    blocker.close()
    last = MAX_WAITING + 100
    history.add(NOW + last, [power(1.0)], run_open=True)
    result = times(history)
    history.close()

    assert result == [0, *range(last - MAX_WAITING + 1, last + 1)]
