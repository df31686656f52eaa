"""Files and options that the import rejects."""

import sqlite3
from contextlib import closing

import pytest

from tests.analyzer.importers.sample_files import (
    component_energy_j,
    single_report,
    write_nvidia_smi_log,
)

LOG_HEADER = "timestamp, index, power.draw [W]\n"


def test_import_bad_line_is_named_and_stops_import(call, imported, tmp_path):
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)])
    log.write_text(log.read_text() + "2024/07/19 12:00:1, 0, GPU-a, 10")

    code, _, stderr = call("import", log, "--out", tmp_path / "history.sqlite", "--timezone", "UTC")

    assert code == 1
    assert f"{log}:13: " in stderr
    assert not (tmp_path / "history.sqlite").exists()
    assert component_energy_j(single_report(imported(log, "--skip-bad-lines"))) == pytest.approx(
        1_000
    )


def test_import_existing_run_is_rejected_without_change(call, imported, tmp_path):
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)])
    imported(log)

    def rows():
        with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
            return connection.execute("SELECT * FROM samples").fetchall()

    before = rows()
    code, _, stderr = call("import", log, "--out", tmp_path / "history.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "already" in stderr
    assert rows() == before


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        ("a,b\n1,2\n", "unknown.csv", "unknown format"),
        ("", "empty.csv", "it has no text"),
        (
            f"{LOG_HEADER}2024/07/19 12:00:00, 0, 100 W\n",
            "log.csv",
            "fewer than two times in the run",
        ),
        (f"{LOG_HEADER}2024/07/19 12:00:00, 0, [N/A]\n", "log.csv", "no GPU's power was found"),
        (
            f"{LOG_HEADER}2124/07/19 12:00:00, 0, 100 W\n2124/07/19 12:00:01, 0, 100 W\n",
            "log.csv",
            "in the future",
        ),
        ("time,watts\n1721390400,400\n", "plug.csv", "wall meter's log alone is not a run"),
        ("total_energy: 0.1\n", "metrics.yml", "totals without samples"),
        (
            '{"type": "iteration", "iter": 0, "latency_ms": 8.0}\n',
            "events.jsonl",
            "the time of the run is unknown",
        ),
    ],
)
def test_import_unusable_file_is_rejected_with_cause(call, tmp_path, content, name, reason):
    (tmp_path / name).write_text(content)

    code, _, stderr = call("import", tmp_path / name, "--out", tmp_path / "history.sqlite")

    assert code == 1
    assert reason in stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "history.sqlite").exists()


@pytest.mark.parametrize(
    "options",
    [["--format-of", "x"], ["--timezone", "Mars"], ["--start", "soon"], ["--run-id", "-"]],
)
def test_import_invalid_option_is_usage_error(call, tmp_path, options):
    code, _, stderr = call(
        "import",
        write_nvidia_smi_log(tmp_path / "l.csv", [(0, 1)]),
        "--out",
        tmp_path / "history.sqlite",
        *options,
    )

    assert code == 2
    assert "Traceback" not in stderr


def test_import_utf_16_log_of_powershell_is_read(imported, tmp_path):
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)])
    log.write_text(log.read_text(), encoding="utf-16")

    assert component_energy_j(single_report(imported(log))) == pytest.approx(1_000)


def test_import_file_given_twice_is_rejected(call, tmp_path):
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)])

    code, _, stderr = call(
        "import", log, tmp_path, "--out", tmp_path / "h.sqlite", "--timezone", "UTC"
    )

    assert code == 1
    assert "it is given 2 times; give it once" in stderr


def test_import_folder_names_files_of_other_endings(call, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    write_nvidia_smi_log(folder / "log.csv", [(t, 100) for t in range(11)])
    (folder / "node2.log").write_text("timestamp, index, power.draw [W]\n")

    code, _, stderr = call("import", folder, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 0
    assert f"left out 1 file of unknown format: {folder / 'node2.log'}" in stderr
