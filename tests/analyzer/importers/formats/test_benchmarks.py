"""Import of Wattline run folders, AIPerf and ML.ENERGY results."""

import json

import pytest

from analyzer.model.interval import Interval
from tests.analyzer.importers.sample_files import (
    BEGIN_S,
    component_energy_j,
    finding_texts_of,
    single_report,
    write_nvidia_smi_log,
)


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


def test_run_record_with_power_log_gives_energy_per_token(imported, tmp_path):
    # warm-up 10 s at 100 W, then 20 s at 300 W: 6,000 J for 1,000 tokens
    record(tmp_path / "run", ["GPU-a"])
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t - 0.005, 100 if t < 10 else 300) for t in range(-5, 40)])

    report = imported(tmp_path / "run", log)["ours-1"]

    work = report.work[0]
    assert work.phases == ("measure",)
    assert work.energy_per_unit.value == pytest.approx(6.0, rel=1e-3)
    assert report.duration_s == 30


def test_run_record_has_ledger_energy_and_interval(imported, tmp_path):
    record(tmp_path / "run", ["GPU-a"])
    (tmp_path / "run" / "metrics.yml").write_text(
        "energy_joules: {gpu: {GPU-a: 6500.0}}\nenergy_uncertainty_joules: {gpu: {GPU-a: 12.0}}\n"
    )

    report = imported(tmp_path / "run")["ours-1"]

    assert report.devices[0].energy == Interval(6_500, 12)


def test_aiperf_gives_work_latencies_and_counter_energy(imported, tmp_path):
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

    report = single_report(imported(path))

    assert component_energy_j(report) == pytest.approx(18_000)
    assert report.results["ttft_seconds_p99"] == pytest.approx(0.25)
    assert {work.unit: work.energy_per_unit.value for work in report.work} == pytest.approx(
        {"generated_tokens": 4.5, "requests": 900}
    )
    assert "its uncertainty is unknown" in finding_texts_of(report, "imported")[0]


def test_ml_energy_run_is_the_steady_state(imported, tmp_path):
    (tmp_path / "results.json").write_text(
        json.dumps(
            {"model_id": "Qwen/Qwen3-8B", "gpu_model": "H100", "steady_state_duration": 100.0}
            | {"steady_state_energy": 50_000.0, "steady_state_energy_per_token": 0.1, "output_throughput": 4_890.4}
        )
    )
    (tmp_path / "prometheus.json").write_text(
        json.dumps({"steady_state_start_time": BEGIN_S, "steady_state_end_time": BEGIN_S + 100})
    )

    report = single_report(imported(tmp_path / "results.json"))

    assert component_energy_j(report) == pytest.approx(50_000)
    assert report.work[0].amount == pytest.approx(500_000)


def test_import_mentions_time_zone_only_for_local_times(call, tmp_path):
    record(tmp_path / "run", ["GPU-a"])
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)])

    *_, of_unix_times = call("import", tmp_path / "run", "--out", tmp_path / "ours.sqlite")
    *_, of_local_times = call("import", log, "--out", tmp_path / "log.sqlite")

    assert "wrote 1 run, 11 samples" in of_unix_times
    assert "times without a time zone" not in of_unix_times
    assert "for times without a time zone" in of_local_times
