"""Reading of the local history that an exporter wrote."""

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.unprivileged import unprivileged
from wattline.contract import metrics as m
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.history import HistorySource
from wattline_exporter.sensors.readings import Reading
from wattline_exporter.storage.history import EndedRuns, History

NOW = 1_790_000_000


@pytest.fixture
def source(tmp_path):
    """Three minutes: GPU 0 has a new power each second, GPU 1 steps at second 100; a run ended at
    second 30.
    """
    history = History(tmp_path)
    for second in range(180):
        power = [
            Reading(m.GPU_POWER, ("0", "GPU-0"), 100.0 + second),
            Reading(m.GPU_POWER, ("1", "GPU-1"), 70.0 if second < 100 else 80.0),
            Reading(m.GPU_ENERGY, ("1", "GPU-1"), 5.0),
        ]
        ended = {"r-1": (Reading(m.RUN_START, ("r-1",), NOW + 10.0),)} if second >= 30 else {}
        history.add(
            NOW + second, power, run_open=True, ended=EndedRuns(ended, are_due=second % 15 == 0)
        )
    history.close()
    opened = HistorySource(tmp_path)
    yield opened
    opened.close()


def series_of(source, metrics, matchers, start_s, end_s):
    (part,) = source.parts(metrics, matchers, NOW + start_s, NOW + end_s)
    return {
        labels.get("gpu", labels.get("run_id")): (list(t - NOW), list(value))
        for labels, t, value in part
    }


def test_parts_returns_changed_and_steady_samples_in_time_order(source):
    series = series_of(source, [m.GPU_POWER], {}, 98, 101)

    assert series == {
        "0": ([98, 99, 100, 101], [198, 199, 200, 201]),
        "1": ([98, 99, 100, 101], [70, 70, 80, 80]),
    }


def test_parts_ended_run_has_first_and_due_samples(source):
    assert series_of(source, [m.RUN_START], {"run_id": "r-1"}, 0, 61) == {
        "r-1": ([30, 45, 60], [NOW + 10] * 3)
    }


def test_prefetch_reads_samples_of_all_requests_once(source, tmp_path):
    requests = [
        ([m.GPU_POWER], {"gpu": "1"}),
        ([m.GPU_ENERGY], {}),
        ([m.GPU_POWER, m.GPU_ENERGY], {"gpu": "0"}),
    ]
    with closing(HistorySource(tmp_path)) as other:
        expected = [series_of(other, *request, 20, 40) for request in requests]
    statements = []
    source._connection.set_trace_callback(statements.append)
    for request in requests:
        source.prefetch(*request, NOW + 20, NOW + 40)
    found = [series_of(source, *request, 20, 40) for request in requests]

    assert found == expected
    assert [list(one) for one in found] == [["1"], ["1"], ["0"]]
    assert sum("FROM changed WHERE" in text for text in statements) == 1
    assert sum("FROM steady WHERE" in text for text in statements) == 1


def test_prefetch_other_span_reads_again(source):
    source.prefetch([m.GPU_POWER], {}, NOW + 20, NOW + 40)

    assert series_of(source, [m.GPU_POWER], {"gpu": "0"}, 50, 51) == {"0": ([50, 51], [150, 151])}
    assert series_of(source, [m.GPU_POWER], {"gpu": "0"}, 20, 21) == {"0": ([20, 21], [120, 121])}


def test_parts_overlapping_spans_read_each_sample_once(source):
    spans = (20, 40), (30, 60), (35, 50), (55, 70), (10, 70), (100, 101)
    begins_ms = []

    def note(statement):
        if "FROM changed WHERE" in statement:
            begins_ms.append(int(statement.split("BETWEEN ")[1].split()[0]) - NOW * 1_000)

    source._connection.set_trace_callback(note)
    for first, final in spans:
        times = list(range(first, final + 1))
        expected = {
            "0": (times, [100 + t for t in times]),
            "1": (times, [80 if t >= 100 else 70 for t in times]),
        }
        assert series_of(source, [m.GPU_POWER], {}, first, final) == expected

    # the third span is a part of the second one; the fifth and the sixth do not follow the span
    # before
    assert begins_ms == [20_000, 40_001, 60_001, 10_000, 100_000]


def test_parts_samples_written_since_the_last_read_are_found(source, tmp_path):
    assert series_of(source, [m.GPU_POWER], {"gpu": "0"}, 178, 190) == {
        "0": ([178, 179], [278, 279])
    }

    history = History(tmp_path)
    power = [Reading(m.GPU_POWER, ("0", "GPU-0"), 7.0), Reading(m.GPU_POWER, ("2", "GPU-2"), 8.0)]
    history.add(NOW + 180, power, run_open=True)
    history.close()

    assert series_of(source, [m.GPU_POWER], {"gpu": "0"}, 178, 190) == {
        "0": ([178, 179, 180], [278, 279, 7])
    }
    assert series_of(source, [m.GPU_POWER], {"gpu": "2"}, 178, 190) == {"2": ([180], [8])}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a database", "it is not a Wattline history; give --source an exporter's "),
        (b"", "it is not a Wattline history; give --source an exporter's "),
        (b"whole, without its end", "database disk image is malformed; it is damaged: "),
    ],
)
def test_history_source_unusable_file_names_cause_and_remedy(tmp_path, content, message):
    path = tmp_path / "history.sqlite"
    if content.startswith(b"whole"):
        History(tmp_path).close()
        content = path.read_bytes()[:8_192]
    path.write_bytes(content)

    with pytest.raises(FetchError) as raised:
        HistorySource(tmp_path)

    assert str(raised.value).startswith(f"cannot read {path}: {message}")


def test_history_source_without_permission_names_cause_and_remedy():
    with TemporaryDirectory() as folder:  # others may not look into pytest's folders
        Path(folder).chmod(0o755)
        History(Path(folder)).close()
        path = Path(folder) / "history.sqlite"
        path.chmod(0)

        with unprivileged(), pytest.raises(FetchError) as raised:
            HistorySource(path)

    assert str(raised.value) == f"cannot read {path}: Permission denied; let this user read it"


def test_history_source_that_is_a_folder_names_cause_and_remedy(tmp_path):
    (tmp_path / "history.sqlite").mkdir()

    with pytest.raises(FetchError, match=r": Is a directory; give --source an exporter's"):
        HistorySource(tmp_path)


def test_history_source_of_another_schema_names_the_versions(tmp_path):
    with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
        connection.execute("CREATE TABLE meta (key TEXT, value TEXT)")
        connection.execute("INSERT INTO meta VALUES ('schema_version', '7')")
        connection.commit()

    with pytest.raises(FetchError, match=r"has schema 7; this version reads schema 1; read it wi"):
        HistorySource(tmp_path)
