"""List of runs."""

import csv
import io
import json
import time

import pytest

from tests.analyzer.loopback import Reply, http_server
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    series_of_scrapes,
    write_history,
)
from wattline.contract import metrics as m
from wattline.contract.api import RunGpu
from wattline.contract.run import Run, RunDevice
from wattline.figures import Figure


def test_runs_of_source_without_runs_is_one_line_with_a_remedy(analyzer, tmp_path):
    history = write_history(
        tmp_path, series_of_scrapes([(START_S, [(m.BUILD_INFO, {"version": "1"}, 1.0)])])
    )

    completed = analyzer("runs", "--source", history, "--since", "36500d")

    assert completed.returncode == 0
    assert completed.stdout == ""
    assert len(completed.stderr.splitlines()) == 1
    assert completed.stderr.startswith("analyzer: no run at ")
    assert "start one with workloads run" in completed.stderr


def test_runs_csv_without_runs_has_the_same_header(analyzer, tmp_path):
    (tmp_path / "none").mkdir()
    none = write_history(
        tmp_path / "none", series_of_scrapes([(START_S, [(m.BUILD_INFO, {"version": "1"}, 1.0)])])
    )
    some = many_runs(tmp_path, 1)

    empty, full = (
        analyzer("runs", "--source", source, "--since", "36500d", "--format", "csv")
        for source in (none, some)
    )

    assert empty.stdout.splitlines() == full.stdout.splitlines()[:1]
    assert empty.stdout.startswith("run_id,")


def many_runs(folder, count):
    """Write a history of runs of 1 s, one after the other, each scraped at its end."""
    gpu = NodeGpu([(START_S - 1_000, 60)])
    scrapes = [(START_S - 1, list(scrape([gpu], NodeRun(start_s=START_S + 1e6), START_S - 1)))]
    for number in range(count):
        run = NodeRun(f"run-{number:03d}", START_S + number, START_S + number + 1)
        scrapes.append((START_S + number + 1, list(run_series([gpu], run, START_S + number + 1))))
    return write_history(folder, series_of_scrapes(scrapes))


def test_runs_table_has_one_line_for_a_label_with_a_newline(analyzer, tmp_path):
    gpu = NodeGpu([(START_S - 1_000, 60)])
    run = NodeRun(labels={"model": "a\nb\x1b[2J"})
    history = write_history(
        tmp_path, series_of_scrapes([(START_S + 60, list(run_series([gpu], run, START_S + 60)))])
    )

    table, document = (
        analyzer("runs", "--source", history, "--since", "36500d", "--format", form).stdout
        for form in ("table", "json")
    )

    assert len(table.splitlines()) == 2
    assert "model=a\\nb\\x1b[2J" in table
    assert json.loads(document)[0]["labels"] == {"model": "a\nb\x1b[2J"}


def test_runs_formats_for_machines_list_all_runs(analyzer, tmp_path):
    history = many_runs(tmp_path, 60)

    listed = [
        analyzer("runs", "--source", history, "--since", "36500d", "--format", form)
        for form in ("json", "csv")
    ]
    table = analyzer("runs", "--source", history, "--since", "36500d")

    assert len(json.loads(listed[0].stdout)) == 60
    assert len(listed[1].stdout.splitlines()) == 1 + 60
    assert [one.stderr for one in listed] == ["", ""]
    assert table.stdout.count("run-0") == 50
    assert "showing the newest 50 runs; --limit N lists more" in table.stderr


def test_runs_of_simulated_gpu_before_a_restart_are_simulated(analyzer, tmp_path):
    """The exporter restarted after the run, and has no GPU yet: 6,000 ± 10 J without an error of a
    sensor.
    """
    gpu, run = (
        NodeGpu([(START_S - 1_000, 300)], name="SIMULATED NVIDIA H200"),
        NodeRun(uncertainty_j=10.0),
    )
    scrapes = [(START_S + t, list(scrape([gpu], run, START_S + t))) for t in range(-1, 22)]
    scrapes += [(START_S + 60, list(run_series([gpu], run, START_S + 60)))]
    history = write_history(tmp_path, series_of_scrapes(scrapes))

    table, document = (
        analyzer("runs", "--source", history, "--since", "36500d", "--format", form).stdout
        for form in ("table", "json")
    )

    assert "SIMULATED" in table
    assert "1.6667 ± 0.0028 Wh" in table
    assert [row["simulated"] for row in json.loads(document)] == [True]


def test_runs_limit_applies_to_formats_for_machines(analyzer, tmp_path):
    history = many_runs(tmp_path, 6)

    listed = analyzer(
        "runs", "--source", history, "--since", "36500d", "--format", "json", "--limit", "2"
    )

    assert [row["run_id"] for row in json.loads(listed.stdout)] == ["run-005", "run-004"]


def test_runs_since_leaves_out_runs_that_ended_earlier(analyzer, tmp_path):
    """An exporter shows ended runs for ten minutes: all three are scraped in the last minute."""
    now_s, gpu = time.time(), NodeGpu([(START_S, 60)])
    runs = [
        NodeRun("over", now_s - 400, now_s - 300),
        NodeRun("ended", now_s - 400, now_s - 20),
        NodeRun("running", now_s - 400, None),
    ]
    scrapes = [
        (t, [one for run in runs for one in run_series([gpu], run, t)])
        for t in (now_s - 25, now_s - 5)
    ]
    history = write_history(tmp_path, series_of_scrapes(scrapes))

    minute, hour = (
        analyzer("runs", "--source", history, "--since", since, "--format", "json")
        for since in ("1m", "1h")
    )

    assert {row["run_id"] for row in json.loads(minute.stdout)} == {"ended", "running"}
    assert {row["run_id"] for row in json.loads(hour.stdout)} == {"over", "ended", "running"}


def test_runs_of_file_without_runs_checks_its_exporter(analyzer, tmp_path):
    history = write_history(
        tmp_path, series_of_scrapes([(START_S, [(m.BUILD_INFO, {"version": "1"}, 1.0)])])
    )

    completed = analyzer("runs", "--source", history)

    assert "scrape" not in completed.stderr
    assert (
        "check that the file is of the right node, and that its exporter was running"
        in completed.stderr
    )


def shared_history(folder, share):
    """Write a history of two runs of 20 s and 60 W at the same time, each with this share of the
    energy.
    """
    gpu, t = NodeGpu([(START_S - 1_000, 60)]), START_S + 20
    rows = []
    for name in ("a", "b"):
        rows += run_series([gpu], NodeRun(name), t)
        of_gpu = {"component": "gpu", "device": gpu.uuid, "policy": "idle_shared"}
        rows.append((m.RUN_ATTRIBUTED_ENERGY, {"run_id": name, **of_gpu}, share * 60 * 20))
    return write_history(folder, series_of_scrapes([(t, rows)]))


def test_runs_at_the_same_time_have_their_attributed_energies(analyzer, tmp_path):
    history = shared_history(tmp_path, 0.5)

    listed, table = (
        analyzer("runs", "--source", history, "--since", "36500d", "--format", form)
        for form in ("json", "table")
    )

    rows = json.loads(listed.stdout)
    assert [row["gpu_energy_joules"] for row in rows] == [1_200, 1_200]
    assert sum(row["attributed_gpu_energy_joules"] for row in rows) == 1_200
    assert "Attributed" in table.stdout
    assert "the rest is of other users" in table.stdout


def test_runs_alone_on_their_gpu_need_no_attributed_energy_in_the_table(analyzer, tmp_path):
    table = analyzer("runs", "--source", shared_history(tmp_path, 0.999), "--since", "36500d")

    assert "GPU energy" in table.stdout
    assert "Attributed" not in table.stdout


def test_runs_lists_newest_first_in_each_format(analyzer, steady_history):
    where = ("--source", steady_history, "--since", "36500d")
    (read,) = json.loads(analyzer("runs", *where, "--format", "json").stdout)

    assert read["run_id"] == "train-1"
    assert read["state"] == "ok"
    assert read["gpu_energy_joules"] == 12_000
    assert read["labels"] == {"model": "tiny"}
    (row,) = csv.DictReader(io.StringIO(analyzer("runs", *where, "--format", "csv").stdout))
    assert row["labels"] == '{"model": "tiny"}'
    table = analyzer("runs", *where).stdout
    assert "3.33 ± 0.21 Wh" in table
    assert "model=tiny" in table


def test_runs_piped_shows_whole_ids_and_labels(analyzer, tmp_path):
    run_id, label = "llama-3.3-70b-instruct-awq-tensor-parallel-8-0123456789abcdef", "x" * 128
    run = NodeRun(run_id=run_id, labels={f"label_number_{n}": label for n in range(4)})
    path = write_history(
        tmp_path,
        series_of_scrapes(
            (t, scrape([NodeGpu([(START_S, 300)])], run, t)) for t in [START_S, START_S + 25]
        ),
    )

    table = analyzer("runs", "--source", path, "--since", "36500d").stdout

    assert len(table.splitlines()) == 2  # the heading and the run
    assert run_id in table
    assert all(f"label_number_{n}={label}" in table for n in range(4))
    assert "…" not in table
    assert "\x1b" not in table


def answer_as_exporter(run):
    """Return the responses of an exporter without a history that has this run in its ledger."""
    nothing = {"status": "success", "data": {"resultType": "matrix", "result": []}}

    def respond(path, _):
        if path == "/api/v1/runs":
            return Reply(200, json.dumps([run.to_json()]).encode())
        return Reply(200, json.dumps(nothing).encode())

    return respond


@pytest.mark.parametrize(
    ("ledger_start_s", "expected"),
    [
        (0.0, ("ok", 12.0, 3_600.0, 5.0)),  # as in the ledger
        (-300.0, ("running", 10.0, 600.0, 10.0)),  # another run: 60 W x 10 s as scraped
    ],
)
def test_runs_state_and_energy_of_an_ended_run_are_of_the_ledger(
    analyzer, tmp_path, ledger_start_s, expected
):
    """The last scrape was 10 s after the start; the exporter has 3,600 J of 12 s."""
    start_s, gpu = time.time() - 11, NodeGpu([(0, 60)])
    open_run = NodeRun("job", start_s, None)
    history = write_history(
        tmp_path,
        series_of_scrapes(
            [
                (t, [(m.BUILD_INFO, {"version": "1"}, 1.0), *run_series([gpu], open_run, t)])
                for t in (start_s + 5, start_s + 10)
            ]
        ),
    )
    device = RunDevice("gpu", gpu.uuid, Figure(3_600.0, 5.0))
    ended = Run(
        run_id="job",
        workload="train",
        state="ended",
        started_at=start_s + ledger_start_s,
        duration_s=12.0,
        outcome="ok",
        ended_at=start_s + ledger_start_s + 12,
        gpus=(RunGpu("0", gpu.uuid, "", ""),),
        devices=(device,),
    )

    with http_server(answer_as_exporter(ended)) as (address, _):
        listed = analyzer(
            *("runs", "--source", history, "--format", "json"),
            WATTLINE_EXPORTER=f"http://{address}",
        )

    (row,) = json.loads(listed.stdout)
    assert (
        row["state"],
        row["duration_seconds"],
        row["gpu_energy_joules"],
        row["gpu_energy_uncertainty_joules"],
    ) == pytest.approx(expected)
