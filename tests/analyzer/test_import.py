"""Files of other tools become runs: energies by real time, of all GPUs, without what lies outside of the run."""

import json
import sqlite3
import sys
import time
from contextlib import closing
from datetime import UTC, datetime

import pytest

from analyzer.assess import assess
from analyzer.cli import main
from analyzer.quantity import Quantity
from analyzer.sources.history import HistorySource
from analyzer.sources.runs import Clock, load

BEGIN_S = 1_721_390_400.0  # 2024-07-19 12:00:00 UTC


def stamp(offset_s, form="%Y-%m-%d %H:%M:%S"):
    return datetime.fromtimestamp(BEGIN_S + offset_s, UTC).strftime(form)


def smi(path, samples, *, uuids=("GPU-a", "GPU-b")):
    """nvidia-smi's log with units; `samples` are (seconds after the begin, watts of each GPU)."""
    lines = ["timestamp, index, uuid, power.draw [W], utilization.gpu [%], enforced.power.limit [W]"]
    for offset_s, *watts in samples:
        when = stamp(offset_s, "%Y/%m/%d %H:%M:%S.%f")[:-3]
        lines += [
            f"{when}, {i}, {uuids[i]}, {power:.2f} W, {0 if power < 100 else 97} %, 400.00 W"
            for i, power in enumerate(watts)
        ]
    path.write_text("\n".join([*lines, ""]))
    return path


@pytest.fixture
def call(capsys, monkeypatch):
    """The command line: its exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["analyzer", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def imported(call, tmp_path):
    """Imports into a history and gives the report of each run, by run id."""

    def reports(*arguments, zone="UTC"):
        out = tmp_path / "history.sqlite"
        code, shown, said = call("import", *arguments, "--out", out, "--timezone", zone)
        assert code == 0, said
        return {
            line.partition(":")[0]: report_of(out, line.partition(":")[0])
            for line in shown.splitlines()
            if not line.startswith(" ")
        }

    return reports


def report_of(history, run_id):
    with closing(HistorySource(history)) as source:
        return assess(load(source, run_id, time.time(), Clock(time.time, time.sleep), lambda _: None))


def only(reports):
    assert len(reports) == 1
    return next(iter(reports.values()))


def texts(report, code):
    return [finding.text for finding in report.findings if finding.code == code]


def joules(report, component="gpu"):
    return sum(device.energy.value for device in report.devices if device.component == component)


def test_all_gpus_of_an_nvidia_smi_log_count_with_their_real_timestamps(imported, tmp_path):
    # GPU 0: 200 W x 30 s = 6,000 J; GPU 1: 300 W x 30 s = 9,000 J
    log = smi(tmp_path / "log.csv", [(0.5 + t, 200, 300) for t in range(31)])

    report = only(imported(log))

    assert joules(report) == pytest.approx(15_000, rel=1e-9)
    assert [device.device for device in report.devices] == ["GPU-a", "GPU-b"]
    assert all(device.energy.half is None for device in report.devices)
    assert "power sampled every 1 s" in texts(report, "imported")[0]
    assert texts(report, "whole_log")


def test_a_local_time_is_read_in_the_zone_that_is_given(imported, tmp_path):
    report = only(imported(smi(tmp_path / "log.csv", [(t, 100) for t in range(11)]), zone="+01:00"))

    assert report.started_at_s == BEGIN_S - 3_600


def test_idle_time_of_a_log_is_not_counted_in_but_gives_the_baseline(imported, tmp_path):
    # 60 s idle at 50 W, 40 s at 300 W, 60 s idle at 50 W: the run is 300 W x 40 s = 12,000 J, net 250 W x 40 s
    load = [(t, 50 if t < 60 or t > 100 else 300) for t in range(161)]
    log = smi(tmp_path / "log.csv", load)

    report = only(imported(log, "--start", BEGIN_S + 60, "--end", BEGIN_S + 100, "--run-id", "burst"))

    assert joules(report) == pytest.approx(12_000, rel=1e-9)
    assert report.devices[0].idle_power_w.value == pytest.approx(50)
    assert report.devices[0].net.value == pytest.approx(10_000)
    assert not texts(report, "whole_log")


def test_what_a_gap_hides_is_not_made_up(imported, tmp_path):
    # 100 W in [0, 20] and [40, 60]: 4,000 J are known, and a third of the minute is not
    log = smi(tmp_path / "log.csv", [(t, 100) for t in (*range(21), *range(40, 61))])

    report = only(imported(log))

    assert joules(report) == pytest.approx(4_000, rel=1e-9)
    assert report.devices[0].covered_ratio == pytest.approx(2 / 3)
    assert "no energy is counted in them" in texts(report, "gap")[0]
    assert "mean power of the run are higher" in texts(report, "uncovered")[0]


def test_the_energy_of_iris_is_by_real_time_and_its_own_total_is_named_as_too_low(imported, tmp_path):
    """The seed's case: two V100s, 79 + 83 W, 119 samples 3.2 s apart, summed as if they were 1 s apart."""
    folder = tmp_path / "results"
    folder.mkdir()
    offsets_s = [3.2 * k for k in range(119)]  # the last at 377.6 s
    lines = ["timestamp,gpu_index,utilization,power,temperature,memory"]
    lines += [f"{stamp(t, '%Y-%m-%d %H:%M:%S.%f')},{i},90,{(79, 83)[i]},50,6500" for t in offsets_s for i in range(2)]
    (folder / "timeseries.csv").write_text("\n".join(lines))
    nominal_kwh = 162 * 118 / 3.6e6  # 0.00531 kWh, as its plot's title has it
    (folder / "metrics.yml").write_text(
        f"benchmark: synthetic_regression\nname: Tesla V100-PCIE-32GB\nelapsed_time: 377.6\n"
        f"start_time: {stamp(0, '%Y-%m-%d %H:%M:%S.%f')}\ntotal_energy: {nominal_kwh!r}\nmax_power_limit: 250.0\n"
    )

    report = only(imported(folder))

    assert joules(report) == pytest.approx(162 * 377.6, rel=1e-6)  # 61,171 J
    assert "19116 J" in texts(report, "nominal_time")[0]
    assert "3.2 times too low" in texts(report, "nominal_time")[0]
    assert report.workload == "synthetic_regression"


GPU_TUNE = "timestamp,epoch,iteration,batch,loss,tokens_per_sec,power_draw,power_limit,max_watt,total_power_draw"


def tune_row(offset_s, iteration, gpu_0_w, total_w, cap_w):
    when = stamp(offset_s, "%Y-%m-%dT%H:%M:%S.%f")
    return f"{when},1,{iteration},1,0.5,7000,{gpu_0_w},{cap_w},{cap_w},{total_w}"


def test_gpu_tune_counts_all_gpus_and_no_gap_between_runs(imported, tmp_path):
    # 150 W cap: 290 W of both GPUs x 20 s = 5,800 J; 175 W cap, 70 s later: 340 W x 20 s = 6,800 J
    rows = [tune_row(t, 1 + t / 10, 148, 290, 150) for t in (0, 10, 20)]
    rows += [tune_row(90 + t, 1 + t / 10, 172, 340, 175) for t in (0, 10, 20)]
    (tmp_path / "training_stats.csv").write_text("\n".join([GPU_TUNE, *rows]))

    reports = imported(tmp_path / "training_stats.csv")

    found = {report.labels["power_limit_watts"]: report for report in reports.values()}
    assert {cap: joules(report) for cap, report in found.items()} == pytest.approx({"150": 5_800, "175": 6_800})
    assert {cap: report.duration_s for cap, report in found.items()} == {"150": 20, "175": 20}


def test_a_gpu_tune_file_of_gpu_0_says_that_the_others_are_missing(imported, tmp_path):
    lines = ["timestamp,tokens_per_sec,power_draw,max_watt"]
    lines += [f"{stamp(t)},7000,200,225" for t in (0, 5, 10)]
    (tmp_path / "inference_stats.csv").write_text("\n".join(lines))

    report = only(imported(tmp_path / "inference_stats.csv"))

    assert joules(report) == pytest.approx(2_000)
    assert texts(report, "gpu0_only")


def test_a_rerun_of_a_cap_that_was_appended_is_a_run_of_its_own(imported, tmp_path):
    rows = [tune_row(t, 1 + t / 10, 148, 290, 150) for t in (0, 10, 20)]
    rows += [tune_row(3_600 + t, 1 + t / 10, 148, 290, 150) for t in (0, 10, 20)]
    (tmp_path / "training_stats.csv").write_text("\n".join([GPU_TUNE, *rows]))

    assert [joules(report) for report in imported(tmp_path / "training_stats.csv").values()] == [5_800, 5_800]


def test_a_domain_that_aipowermeter_marks_with_minus_1_is_absent_and_psys_is_not_added(imported, tmp_path):
    # 66 W CPU x 10 s, 12 W DRAM x 10 s, GPUs 19 + 69 W x 10 s; psys of -1 W is nothing
    records = [
        {
            "date": stamp(t, "%Y-%m-%d %H:%M:%S.%f"),
            "metrics": {
                "cpu": {"intel_power": 66.0, "psys_power": -1, "total_dram_power": 12.0, "uncore_power": [0.1]},
                "gpu": {"nvidia_draw_absolute": 88.0, "per_gpu_power_draw": {"0": 19.0, "1": 69.0}},
            },
        }
        for t in range(0, 11, 2)
    ]
    path = tmp_path / "power_metrics.json"
    path.write_text("\n".join(map(json.dumps, records)))

    report = only(imported(path))

    assert {c: joules(report, c) for c in ("gpu", "cpu", "dram")} == pytest.approx(
        {"gpu": 880, "cpu": 660, "dram": 120}
    )


def tenant(folder, name, begin_s, end_s):
    path = folder / "pair" / name / "events.jsonl"
    path.parent.mkdir(parents=True)
    records = [
        {"type": "run_start", "timestamp": begin_s, "model_name": "distilgpt2", "batch_size": 8, "seq_len": 128},
        *({"type": "iteration", "iter": k, "latency_ms": 8.0} for k in range(100)),
        {"type": "run_end", "timestamp": end_s, "p99_ms": 9.0, "avg_ms": 8.0, "tokens_processed": 102_400},
        {"type": "time_elapsed", "sec": 0.9},
    ]
    path.write_text("\n".join(map(json.dumps, records)))


def test_a_power_log_beside_tenants_gives_each_of_them_the_energy_of_its_own_time(imported, tmp_path):
    tenant(tmp_path / "data", "gpt2_1", BEGIN_S + 10, BEGIN_S + 20)
    tenant(tmp_path / "data", "gpt2_2", BEGIN_S + 10, BEGIN_S + 30)
    log = smi(tmp_path / "log.csv", [(t, 250) for t in range(41)])

    first, second = imported(tmp_path / "data", log).values()

    assert (joules(first), joules(second)) == (pytest.approx(2_500), pytest.approx(5_000))
    assert first.labels["tenant"] == "gpt2_1"
    assert first.labels["experiment"] == "pair"
    assert {work.unit: work.amount for work in first.work} == {"prompt_tokens": 102_400, "steps": 100}
    assert first.results["latency_seconds_p99"] == pytest.approx(0.009)
    assert texts(first, "shared")


def test_a_wall_meter_beside_a_gpu_log_says_what_the_sensors_missed(imported, tmp_path):
    # sensors 300 W of the wall's 400 W over 30 s: 9,000 of 12,000 J, 25 % missed
    log = smi(tmp_path / "log.csv", [(t, 300) for t in range(31)])
    plug = tmp_path / "plug.csv"
    plug.write_text("\n".join(["time,watts", *(f"{BEGIN_S + t:.0f},400" for t in range(31))]))

    report = only(imported(log, plug))

    assert joules(report) == pytest.approx(9_000)
    text = texts(report, "wall_meter")[0]
    assert "12000 J" in text
    assert "3000 J (25.0 %)" in text


def record(folder, gpus):
    folder.mkdir()
    events = [
        {
            "event": "start",
            "t": BEGIN_S,
            "run_id": "ours-1",
            "workload": "llm",
            "labels": {"model": "tiny"},
            "gpus": gpus,
        }
        | {"command": ["x"], "config": {}},
        {"event": "phase", "t": BEGIN_S, "name": "warmup"},
        {"event": "phase", "t": BEGIN_S + 10, "name": "measure"},
        *(
            {"event": "iteration", "t": BEGIN_S + 10 + k, "contributor": "0", "index": k, "phase": "measure"}
            | {"latency_seconds": 1.0, "work": {"generated_tokens": 50}}
            for k in range(1, 21)
        ),
        {"event": "end", "t": BEGIN_S + 30, "outcome": "ok", "exit_code": 0, "work": {"generated_tokens": 1_000}},
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))


def test_our_own_run_folder_with_a_power_log_gives_energy_a_token_of_its_measured_phase(imported, tmp_path):
    # warm-up 10 s at 100 W, then 20 s at 300 W: 6,000 J for 1,000 tokens
    record(tmp_path / "run", ["GPU-a"])
    log = smi(tmp_path / "log.csv", [(t - 0.005, 100 if t < 10 else 300) for t in range(-5, 40)])

    report = imported(tmp_path / "run", log)["ours-1"]

    work = report.work[0]
    assert work.phases == ("measure",)
    assert work.energy_per_unit.value == pytest.approx(6.0, rel=1e-3)
    assert report.duration_s == 30


def test_our_own_run_folder_has_the_ledgers_energy_and_interval(imported, tmp_path):
    record(tmp_path / "run", ["GPU-a"])
    (tmp_path / "run" / "metrics.yml").write_text(
        "energy_joules: {gpu: {GPU-a: 6500.0}}\nenergy_uncertainty_joules: {gpu: {GPU-a: 12.0}}\n"
    )

    report = imported(tmp_path / "run")["ours-1"]

    assert report.devices[0].energy == Quantity(6_500, 12)


def test_a_zone_is_spoken_of_where_a_file_may_have_local_times_alone(call, tmp_path):
    record(tmp_path / "run", ["GPU-a"])
    log = smi(tmp_path / "log.csv", [(t, 100) for t in range(11)])

    *_, of_unix_times = call("import", tmp_path / "run", "--out", tmp_path / "ours.sqlite")
    *_, of_local_times = call("import", log, "--out", tmp_path / "log.sqlite")

    assert "1 runs" in of_unix_times
    assert "times without a zone" not in of_unix_times
    assert "times without a zone were read as this machine's" in of_local_times


def test_aiperf_gives_requests_tokens_latencies_in_seconds_and_the_counters_energy(imported, tmp_path):
    document = {
        "schema_version": "1.5",
        "benchmark_id": "abc",
        "start_time": "2024-07-19T12:00:00",
        "end_time": "2024-07-19T12:01:00",
        "request_latency": {"unit": "ms", "avg": 2_600.0, "p99": 3_371.0, "count": 20, "sum": 52_000.0},
        "time_to_first_token": {"unit": "ms", "avg": 100.0, "p50": 90.0, "p99": 250.0},
        "request_count": {"unit": "requests", "avg": 20.0},
        "total_output_tokens": {"unit": "tokens", "avg": 4_000.0},
        "telemetry_data": {
            "endpoints": {
                "localhost:9400": {
                    "gpus": {
                        "gpu_0": {
                            "gpu_index": 0,
                            "gpu_uuid": "GPU-a",
                            "metrics": {"nvidia_energy_consumption": {"unit": "MJ", "avg": 0.018}},
                        }
                    }
                }
            }
        },
    }
    path = tmp_path / "profile_export_aiperf.json"
    path.write_text(json.dumps(document))

    report = only(imported(path))

    assert joules(report) == pytest.approx(18_000)
    assert report.results["ttft_seconds_p99"] == pytest.approx(0.25)
    assert {work.unit: work.energy_per_unit.value for work in report.work} == pytest.approx(
        {"generated_tokens": 4.5, "requests": 900}
    )
    assert "its interval is not known" in texts(report, "imported")[0]


def test_ml_energy_is_its_steady_state(imported, tmp_path):
    (tmp_path / "results.json").write_text(
        json.dumps(
            {"model_id": "Qwen/Qwen3-8B", "gpu_model": "H100", "steady_state_duration": 100.0}
            | {"steady_state_energy": 50_000.0, "steady_state_energy_per_token": 0.1, "output_throughput": 4_890.4}
        )
    )
    (tmp_path / "prometheus.json").write_text(
        json.dumps({"steady_state_start_time": BEGIN_S, "steady_state_end_time": BEGIN_S + 100})
    )

    report = only(imported(tmp_path / "results.json"))

    assert joules(report) == pytest.approx(50_000)
    assert report.work[0].amount == pytest.approx(500_000)


def test_a_bad_line_is_named_and_nothing_is_imported_unless_it_may_be_left_out(call, imported, tmp_path):
    log = smi(tmp_path / "log.csv", [(t, 100) for t in range(11)])
    log.write_text(log.read_text() + "2024/07/19 12:00:1, 0, GPU-a, 10")

    code, _, said = call("import", log, "--out", tmp_path / "history.sqlite", "--timezone", "UTC")

    assert code == 1
    assert f"{log}:13: " in said
    assert not (tmp_path / "history.sqlite").exists()
    assert joules(only(imported(log, "--skip-bad-lines"))) == pytest.approx(1_000)


def test_a_run_that_is_there_already_is_refused_and_the_history_stays_as_it_is(call, imported, tmp_path):
    log = smi(tmp_path / "log.csv", [(t, 100) for t in range(11)])
    imported(log)

    def rows():
        with closing(sqlite3.connect(tmp_path / "history.sqlite")) as connection:
            return connection.execute("SELECT * FROM samples").fetchall()

    before = rows()
    code, _, said = call("import", log, "--out", tmp_path / "history.sqlite", "--timezone", "UTC")

    assert code == 1
    assert "already" in said
    assert rows() == before


def test_another_log_of_the_same_node_and_time_is_not_merged(call, imported, tmp_path):
    imported(smi(tmp_path / "log.csv", [(t, 100) for t in range(11)]), "--node", "n1")
    other = smi(tmp_path / "other.csv", [(t, 200) for t in range(11)])

    code, _, said = call("import", other, "--out", tmp_path / "history.sqlite", "--node", "n1", "--timezone", "UTC")

    assert code == 1
    assert "--node" in said


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        ("a,b\n1,2\n", "unknown.csv", "of no format known here"),
        ("time,watts\n1721390400,400\n", "plug.csv", "wall meter's log alone is no run"),
        ("total_energy: 0.1\n", "metrics.yml", "has totals only"),
        ('{"type": "iteration", "iter": 0, "latency_ms": 8.0}\n', "events.jsonl", "nobody knows when it was"),
    ],
)
def test_what_cannot_be_a_run_is_refused_in_words(call, tmp_path, content, name, reason):
    (tmp_path / name).write_text(content)

    code, _, said = call("import", tmp_path / name, "--out", tmp_path / "history.sqlite")

    assert code == 1
    assert reason in said
    assert "Traceback" not in said
    assert not (tmp_path / "history.sqlite").exists()


@pytest.mark.parametrize(
    "options", [["--format-of", "x"], ["--timezone", "Mars"], ["--start", "soon"], ["--run-id", "-"]]
)
def test_an_option_that_cannot_be_understood_is_a_usage_error(call, tmp_path, options):
    code, _, said = call("import", smi(tmp_path / "l.csv", [(0, 1)]), "--out", tmp_path / "history.sqlite", *options)

    assert code == 2
    assert "Traceback" not in said
