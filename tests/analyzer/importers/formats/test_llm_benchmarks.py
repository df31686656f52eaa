"""Import of AIPerf and ML.ENERGY results."""

import json

import pytest

from tests.analyzer.importers.sample_files import BEGIN_S, component_energy_j, finding_texts_of, single_report


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
