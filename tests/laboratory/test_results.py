"""Files of results and their tables."""

import re

from tests.laboratory.results import (
    FOLDER,
    markdown_table,
    measured_at,
    percent,
    stored_rows,
    text_table,
    write_rows,
)


def without_measurement(rows):
    return [{name: row[name] for name in row if name not in ("commit", "date")} for row in rows]


def test_rows_written_have_commit_and_date(tmp_path):
    write_rows(tmp_path / "rows.json", [{"case": "idle", "runs": 3, "covered": None}])

    (row,) = stored_rows(tmp_path / "rows.json")
    assert without_measurement([row]) == [{"case": "idle", "runs": 3, "covered": None}]
    assert re.fullmatch(r"[0-9a-f]{8,}\+?", row["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"])


def test_rows_with_a_key_replace_their_own_and_keep_the_others(tmp_path):
    file = tmp_path / "rows.json"
    write_rows(file, [{"meter": "a", "runs": 1}, {"meter": "b", "runs": 2}])
    kept = stored_rows(file)[0]

    write_rows(file, [{"meter": "b", "runs": 5}], key=("meter",))

    assert stored_rows(file)[0] == kept
    assert without_measurement(stored_rows(file)) == [
        {"meter": "a", "runs": 1},
        {"meter": "b", "runs": 5},
    ]


def test_file_has_one_row_a_line(tmp_path):
    write_rows(tmp_path / "rows.json", [{"case": "±"}, {"case": "b"}])

    assert len((tmp_path / "rows.json").read_text().splitlines()) == 4
    assert "±" in (tmp_path / "rows.json").read_text()


def test_every_stored_row_has_its_measurement_and_its_number_of_runs():
    files = sorted(FOLDER.glob("*.json"))
    incomplete = [
        (file.stem, row)
        for file in files
        for row in stored_rows(file)
        if not {"commit", "date", "runs"} <= row.keys()
    ]

    assert files
    assert incomplete == []


def test_measurements_are_listed_once_the_earliest_first():
    rows = [
        {"commit": "bbbbbbbb", "date": "2026-11-24"},
        {"commit": "aaaaaaaa", "date": "2026-11-23"},
        {"commit": "bbbbbbbb", "date": "2026-11-24"},
        {},
    ]

    assert measured_at(rows) == "(not recorded), 2026-11-23 (aaaaaaaa), 2026-11-24 (bbbbbbbb)"


def test_tables_align_texts_to_the_left():
    header, rows = ["case", "runs"], [["idle", "3"], ["counter", "12"]]

    assert markdown_table(header, rows) == (
        "| case | runs |\n| --- | --: |\n| idle | 3 |\n| counter | 12 |"
    )
    assert text_table(header, rows) == "case     runs\nidle     3\ncounter  12"


def test_percent_of_a_share():
    assert [percent(0.9312), percent(0.00712, 2), percent(None)] == ["93.1 %", "0.71 %", "–"]
