"""Compact storage of samples: each written sample is read again."""

import random
import sqlite3
from contextlib import closing

import pytest

from wattline.contract import history as contract
from wattline.contract.compact_history import COMPACT_SCHEMA
from wattline.contract.metrics import GPU_POWER, RUN_ENERGY, RUN_START
from wattline_exporter.sensors.readings import Reading
from wattline_exporter.storage.history import EndedRuns, History
from wattline_exporter.storage.sample_store import SeriesIds

NOW = 1_790_000_000
FORMER_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE series (id INTEGER PRIMARY KEY, name TEXT NOT NULL, labels TEXT NOT NULL, UNIQUE (name, labels));
CREATE TABLE samples (
    t_ms INTEGER NOT NULL, series_id INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (t_ms, series_id)
) WITHOUT ROWID;
INSERT INTO meta VALUES ('schema_version', '1');
INSERT INTO series VALUES (7, 'wattline_gpu_power_watts', '{"gpu":"0","uuid":"GPU-0"}');
INSERT INTO samples VALUES (1789999999000, 7, 70.0);
"""


def power(watts, gpu=0):
    return Reading(GPU_POWER, (str(gpu), f"GPU-{gpu}"), watts)


def stored_samples(folder):
    """Return {(second, metric, first label): value} by each of the two ways to read."""
    with closing(contract.open_read_only(folder / contract.HISTORY_FILE)) as connection:
        names = {
            number: (name, labels)
            for number, name, labels in connection.execute("SELECT id, name, labels FROM series")
        }
        by_view = connection.execute(
            "SELECT t_ms, series_id, value FROM samples ORDER BY t_ms, series_id"
        ).fetchall()
        selected = sorted(
            (
                round(t * 1e3),
                contract.canonical_labels({k: v for k, v in one.labels.items() if k != "__name__"}),
                value,
            )
            for name in {name for name, _ in names.values()}
            for one in contract.select_series(
                connection, contract.parse_query(f"{name}[90d]"), NOW + 1e6
            )
            for t, value in one.samples
        )
    assert selected == sorted((t_ms, names[number][1], value) for t_ms, number, value in by_view)
    return {(t_ms / 1e3 - NOW, names[number][1]): value for t_ms, number, value in by_view}


def labels_of(reading):
    return contract.canonical_labels(dict(zip(reading.metric.labels, reading.labels, strict=True)))


@pytest.mark.parametrize("seed", range(12))
def test_samples_read_equal_samples_written(tmp_path, seed):
    rng, written, history = random.Random(seed), {}, History(tmp_path)
    values, present = dict.fromkeys(range(6), 70.0), set(range(6))
    second = 0
    for _ in range(120):
        second += rng.choice((1, 1, 1, 1, 40, 4_000))
        if rng.random() < 0.1:
            present ^= {rng.randrange(6)}
        if rng.random() < 0.3:
            values[rng.randrange(6)] = float(rng.randrange(70, 74))
        if rng.random() < 0.05:  # the exporter is killed
            history.close()
            history = History(tmp_path)
        readings = [power(values[gpu], gpu) for gpu in sorted(present)]
        history.add(NOW + second, readings, run_open=True)
        written |= {(second, labels_of(reading)): reading.value for reading in readings}
    history.close()

    assert stored_samples(tmp_path) == written


@pytest.mark.parametrize("step_s", [3_600, -3_600, -25, -3])
def test_clock_step_moves_steady_samples(tmp_path, step_s):
    history = History(tmp_path)
    for second in range(10, 60):
        history.add(
            NOW + second + step_s * (second >= 40),
            [power(70.0)],
            run_open=True,
            now_s=float(second),
        )
    history.close()

    assert sorted(second for second, _ in stored_samples(tmp_path)) == [
        second + step_s for second in range(10, 60)
    ]


def run_series(run_id, joules):
    return Reading(RUN_START, (run_id,), 5.0), Reading(RUN_ENERGY, (run_id, "gpu", "GPU-0"), joules)


def test_ended_run_has_a_sample_at_its_end_and_when_due(tmp_path):
    history = History(tmp_path)
    for second in range(60):
        ended = {"r-1": run_series("r-1", 300.0)} if 10 <= second < 50 else {}
        history.add(
            NOW + second,
            [power(70.0)],
            run_open=True,
            ended=EndedRuns(ended, are_due=second % 15 == 0),
        )
    rows = history._connection.execute("SELECT count(*) FROM changed").fetchone()[0]
    history.close()
    read = stored_samples(tmp_path)

    assert [
        s for (s, labels), value in read.items() if "component" in labels and value == 300.0
    ] == [10, 15, 30, 45]
    assert [s for (s, labels), value in read.items() if labels == '{"run_id":"r-1"}'] == [
        10,
        15,
        30,
        45,
    ]
    assert rows == 1  # the first sample of the power


def test_unchanged_series_take_no_space(tmp_path):
    history = History(tmp_path)
    for second in range(600):
        readings = [power(300.0, gpu) for gpu in range(100)] + [power(float(second), 100)]
        history.add(NOW + second, readings, run_open=True)
    rows = history._connection.execute(
        "SELECT (SELECT count(*) FROM changed) + (SELECT count(*) FROM steady) + (SELECT count(*) "
        "FROM moment)"
    ).fetchone()[0]
    history.close()

    assert len(stored_samples(tmp_path)) == 600 * 101
    assert (
        rows == 600 + 100 + 100 + 600
    )  # the changing series, first samples and rows of the others, moments


def test_series_of_many_runs_share_their_labels(tmp_path):
    history = History(tmp_path)
    for number in range(50):
        history.add(NOW + number, run_series(f"r-{number}", 1.0), run_open=True)
    templates = history._connection.execute("SELECT count(*) FROM label_template").fetchone()[0]
    history.close()
    with closing(contract.open_read_only(tmp_path / contract.HISTORY_FILE)) as connection:
        query = contract.parse_query('wattline_run_energy_joules_total{run_id="r-7"}[90d]')
        (found,) = contract.select_series(connection, query, NOW + 100)

    assert templates == 2
    assert found.labels["run_id"] == "r-7"
    assert found.samples == [(NOW + 7, 1.0)]


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    ("matchers", "expected"),
    [
        ('run_id="r-7"', {"r-7"}),
        ('run_id=~"r-7|r-1|none"', {"r-7", "r-1"}),
        ('run_id=~"r-7|"', {"r-7", None}),
        ('run_id!="r-7"', {"r-0", "r-1", None}),
        ('device="0"', {"r-0", "r-1", "r-7"}),
    ],
)
def test_labels_of_runs_are_those_that_match(tmp_path, is_plain, matchers, expected):
    name = "wattline_run_energy_joules_total"
    kept = [{"run_id": run, "device": "0"} for run in ("r-0", "r-1", "r-7")]
    kept.append({"note": '"run_id":"r-7"'})
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(contract.SCHEMA if is_plain else COMPACT_SCHEMA)
        ids = SeriesIds(connection) if not is_plain else None
        for number, labels in enumerate(kept, 1):
            if ids is not None:
                ids.find(name, labels)
                continue
            row = number, name, contract.canonical_labels(labels)
            connection.execute("INSERT INTO series VALUES (?, ?, ?)", row)
        if ids is not None:
            ids.insert_new()
        query = contract.parse_query(f"{name}{{{matchers}}}[1s]")
        found = contract.select_labels(connection, query.name, query.matchers)

    assert {labels.get("run_id") for labels in found.values()} == expected
    assert {labels.pop("__name__") for labels in found.values()} == {name}
    assert all(labels in kept for labels in found.values())


def test_file_of_former_version_is_read_and_continued(tmp_path):
    with closing(sqlite3.connect(tmp_path / contract.HISTORY_FILE)) as connection:
        connection.executescript(FORMER_SCHEMA)
    history = History(tmp_path)
    for second in range(3):
        history.add(NOW + second, [power(70.0)], run_open=True)
    history.close()

    assert stored_samples(tmp_path) == {
        (second, '{"gpu":"0","uuid":"GPU-0"}'): 70.0 for second in (-1, 0, 1, 2)
    }


def test_series_of_a_run_in_plain_tables_is_continued(tmp_path):
    labels = '{"component":"gpu","device":"GPU-0","run_id":"r-1"}'
    with closing(sqlite3.connect(tmp_path / contract.HISTORY_FILE)) as connection, connection:
        connection.executescript(FORMER_SCHEMA)
        connection.execute(
            "INSERT INTO series VALUES (8, 'wattline_run_energy_joules_total', ?)", (labels,)
        )
    history = History(tmp_path)
    history.add(NOW, [Reading(RUN_ENERGY, ("r-1", "gpu", "GPU-0"), 5.0)], run_open=True)
    history.close()

    assert stored_samples(tmp_path)[0, labels] == 5.0
    with closing(contract.open_read_only(tmp_path / contract.HISTORY_FILE)) as connection:
        ids = connection.execute("SELECT id FROM series WHERE labels = ?", (labels,)).fetchall()
    assert ids == [(8,)]


def test_series_of_a_run_are_the_same_after_its_end_and_a_restart(tmp_path):
    reading = Reading(RUN_ENERGY, ("r-1", "gpu", "GPU-0"), 5.0)
    history = History(tmp_path)
    history.add(NOW, [reading], run_open=True)
    history.add(NOW + 1, [], run_open=True, ended=EndedRuns({"r-1": [reading]}))
    history.close()
    history = History(tmp_path)
    history.add(NOW + 2, [reading], run_open=True)
    history.close()

    assert stored_samples(tmp_path) == {(s, labels_of(reading)): 5.0 for s in (0, 1, 2)}
    with closing(contract.open_read_only(tmp_path / contract.HISTORY_FILE)) as connection:
        assert connection.execute("SELECT count(*) FROM series").fetchone() == (1,)


def test_former_version_can_read_and_write_the_file(tmp_path):
    history = History(tmp_path)
    history.add(NOW, [power(70.0)], run_open=True)
    history.close()
    with closing(sqlite3.connect(tmp_path / contract.HISTORY_FILE)) as connection, connection:
        connection.executescript(
            FORMER_SCHEMA.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS").split("INSERT")[0]
        )
        last_id = connection.execute("SELECT max(id) FROM series").fetchone()[0]
        row = (last_id + 1, "wattline_gpu_power_watts", '{"gpu":"1","uuid":"GPU-1"}')
        connection.execute("INSERT INTO series VALUES (?, ?, ?)", row)
        connection.execute(
            "INSERT OR REPLACE INTO samples VALUES (?, ?, ?)",
            ((NOW + 1) * 1_000, last_id + 1, 80.0),
        )
        connection.execute("DELETE FROM samples WHERE t_ms < ?", (NOW * 1_000 + 1,))

    assert stored_samples(tmp_path) == {(1, '{"gpu":"1","uuid":"GPU-1"}'): 80.0}
