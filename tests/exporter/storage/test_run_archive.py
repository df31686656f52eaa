"""Archive of final runs in the state file."""

import json
import sqlite3
from contextlib import closing

import pytest

from wattline.contract.history import STATE_FILE
from wattline_exporter.attribution.policy import AttributionChanges
from wattline_exporter.sensors.readings import ClockReading
from wattline_exporter.storage.run_archive import KEPT_RUNS
from wattline_exporter.storage.saved_state import StateChanges, StoredRun
from wattline_exporter.storage.state_file import StateFile

UUID = "GPU-f875bc6b-2fae-51f1-8109-e99a752776f8"


def body(number):
    """Return a stored run with 40 values that differ between runs, and 4 kB of names that do
    not.
    """
    marks = {
        f"gpu:{UUID}:{n}": {"joules": number / 7 + n, "half_width_j": 1.5, "covered_s": 10.0}
        for n in range(40)
    }
    return json.dumps({"run_id": f"run-{number}", "ended_at": float(number), "begin": marks})


def final(number):
    return StoredRun(
        f"run-{number}",
        float(number),
        is_open=False,
        is_final=True,
        request=f"digest-{number}",
        body=body(number),
    )


def changes(now_s, runs):
    return StateChanges(
        {}, {}, runs, {}, AttributionChanges({}, set()), {}, ClockReading(now_s, now_s, now_s)
    )


@pytest.fixture
def state(tmp_path):
    file = StateFile(tmp_path)
    yield file
    file.close()


def save_ended(state, count):
    runs = [final(n) for n in range(count)]
    others = [
        StoredRun("open", 0.0, is_open=True, is_final=False, request="", body=body(0)),
        StoredRun("ended", 0.0, is_open=False, is_final=False, request="", body=body(0)),
    ]
    state.save(changes(1.0, [*runs, *others]))
    for second in range(2, 30):
        state.save(changes(float(second), []))


def test_archived_run_is_found_as_it_was_saved(state):
    save_ended(state, KEPT_RUNS + 450)

    found = [state.run(f"run-{n}") for n in (0, 1, 449, 450)]
    assert found == [final(n) for n in (0, 1, 449, 450)]
    assert state.run("another") is None


def test_newest_final_runs_and_others_stay_in_the_table_of_runs(state, tmp_path):
    save_ended(state, KEPT_RUNS + 450)
    with closing(sqlite3.connect(tmp_path / STATE_FILE)) as connection:
        stored = {run_id for (run_id,) in connection.execute("SELECT run_id FROM run")}

    assert stored == {"open", "ended", *(f"run-{n}" for n in range(450, KEPT_RUNS + 450))}
    assert [run.run_id for run in state.runs(2)] == [f"run-{KEPT_RUNS + n}" for n in (449, 448)]


def test_pages_of_runs_go_on_from_the_table_into_the_archive(state):
    """1,000 runs are in the table, 450 older ones in the archive: the seventh page has both."""
    save_ended(state, KEPT_RUNS + 450)

    page = state.runs(150)
    pages = [page]
    while page := state.runs(150, (page[-1].started_at, page[-1].run_id)):
        pages.append(page)

    listed = [run for page in pages for run in page]
    assert [len(page) for page in pages] == [150] * 9 + [102]
    assert [run for run in listed if run.is_final] == [
        final(n) for n in reversed(range(KEPT_RUNS + 450))
    ]
    assert [run.run_id for run in listed[-3:]] == ["run-0", "open", "ended"]


def test_archive_with_its_index_takes_a_ninth_of_the_runs(state, tmp_path):
    save_ended(state, KEPT_RUNS + 2_000)
    pages = (
        "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%archived_run%' OR name = 'run_dictionary'"
    )
    with closing(sqlite3.connect(tmp_path / STATE_FILE)) as connection:
        (archived,) = connection.execute("SELECT count(*) FROM archived_run").fetchone()
        (taken,) = connection.execute(pages).fetchone()

    assert archived == 2_000
    assert taken / archived < len(body(7)) / 9
