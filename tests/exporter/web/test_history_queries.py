"""Local history over HTTP, also with a failing disk."""

import sqlite3
import time
from itertools import pairwise
from statistics import median

import pytest

from tests.daemon import begin, daemon, end
from tests.polling import eventually
from wattline.contract import history as contract

NOW = 1_790_000_000.0


def query_history(exporter, query, **more):
    import requests

    answer = requests.get(
        f"{exporter.url}/api/v1/query", params={"query": query, **more}, timeout=30
    )
    return answer.status_code, answer.json()


def test_query_result_equals_the_history_file(exporter):
    query = 'wattline_gpu_power_watts{gpu="1"}[60s]'

    def three_samples():
        result = query_history(exporter, query)[1]["data"]["result"]
        return result and len(result[0]["values"]) >= 3 and result[0]["values"]

    run_id = begin(exporter)["run_id"]
    at = eventually(three_samples, "three samples", exporter.log)[-1][0]
    end(exporter, run_id)
    status, answer = query_history(exporter, query, time=f"{at:.3f}")
    connection = contract.open_read_only(exporter.folder / contract.HISTORY_FILE)
    rows = connection.execute(
        "SELECT t_ms, value FROM samples JOIN series ON series.id = series_id WHERE name = "
        "'wattline_gpu_power_watts'"
        " AND json_extract(labels, '$.gpu') = '1' AND t_ms <= ? ORDER BY t_ms",
        (round(at * 1_000),),
    ).fetchall()
    connection.close()

    assert (status, answer["status"], answer["data"]["resultType"]) == (200, "success", "matrix")
    ((metric, values),) = [
        (series["metric"], series["values"]) for series in answer["data"]["result"]
    ]
    assert metric["__name__"] == "wattline_gpu_power_watts"
    assert len(values) >= 3
    assert [(round(t * 1_000), float(value)) for t, value in values] == rows


def test_query_includes_the_minute_before_a_run(start):
    with start() as exporter:
        time.sleep(5.0)
        begun_at = begin(exporter)["started_at"]
        query = 'wattline_gpu_energy_joules_total{gpu="0"}[60s]'
        eventually(
            lambda: query_history(exporter, query)[1]["data"]["result"],
            "the next second's sample",
            exporter.log,
        )
        _, answer = query_history(exporter, query)

    (series,) = answer["data"]["result"]
    before = [t for t, _ in series["values"] if t < begun_at]
    assert len(before) >= 3
    assert median(b - a for a, b in pairwise(before)) == pytest.approx(
        1.0, abs=0.3
    )  # some are late on a busy host


@pytest.mark.parametrize(
    ("query", "more", "words"),
    [
        ("", {}, "unsupported query"),
        ("wattline_gpu_power_watts", {}, "[300s]"),
        ("rate(wattline_gpu_energy_joules_total[60s])", {}, "unsupported query"),
        ("sum(x)", {}, "unsupported query"),
        ('x{a="b}[60s]', {}, "label matcher"),
        ('x{a=~"("}[60s]', {}, "regular expression"),
        ("x[60s]", {"time": "noon"}, "time"),
        ("x[60s]", {"time": "nan"}, "time"),
        ("x[60s]", {"time": "1e300"}, "time"),
        (f"x[{'9' * 400}s]", {}, "time"),
    ],
)
def test_query_of_other_form_is_refused_with_reason(exporter, query, more, words):
    status, answer = query_history(exporter, query, **more)

    assert (status, answer["status"], answer["errorType"]) == (400, "error", "bad_data")
    assert words in answer["error"]


def test_query_without_history_is_refused_with_reason(start):
    with start("--no-history") as exporter:
        status, answer = query_history(exporter, "x[60s]")
        assert not (exporter.folder / contract.HISTORY_FILE).exists()

    assert status == 400
    assert "--no-history" in answer["error"]


def test_query_works_while_the_disk_is_full(start):
    with start() as exporter:
        with sqlite3.connect(
            exporter.folder / contract.STATE_FILE, isolation_level=None
        ) as blocker:
            blocker.execute("BEGIN IMMEDIATE")
            eventually(lambda: "cannot write to" in exporter.log(), "a warning", exporter.log)
            assert exporter.get("/metrics")[0] == 200
            assert exporter.log().count("cannot write to") == 1
            assert exporter.post("/api/v1/runs", {"workload": "x", "run_id": "blocked"})[0] == 201
            blocker.execute("COMMIT")
        blocker.close()
        eventually(lambda: "again" in exporter.log(), "it writes again", exporter.log)
        assert end(exporter, "blocked")["outcome"] == "ok"
        rows = sqlite3.connect(exporter.folder / contract.STATE_FILE)
        series = rows.execute("SELECT running FROM run WHERE run_id = 'blocked'").fetchall()
        rows.close()
    assert series == [(0,)]


def test_query_of_invalid_database_is_one_line(tmp_path):
    from tests.daemon import start as launch

    (tmp_path / "state").mkdir()
    (tmp_path / "state" / contract.HISTORY_FILE).write_text(
        "no database, but long enough to be looked at " * 10
    )
    exporter = launch(tmp_path, "--simulate", "1xH200")

    assert exporter.process.wait(30) == 1
    (line,) = exporter.log().splitlines()
    assert "--no-history" in line


def test_query_returns_the_history_of_a_previous_exporter(tmp_path):
    options = ("--simulate", "1xH200", "--no-collector.rapl", "--no-collector.host")
    with daemon(tmp_path, *options) as first:
        run_id = begin(first)["run_id"]
        time.sleep(1.2)
        end(first, run_id)
    with daemon(tmp_path, *options) as second:
        _, answer = query_history(second, f'wattline_run_info{{run_id="{run_id}"}}[60s]')
    assert len(answer["data"]["result"]) == 1
