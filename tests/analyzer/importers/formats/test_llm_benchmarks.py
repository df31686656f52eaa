"""Import of AIPerf and ML.ENERGY results."""

import json

import pytest

from tests.analyzer.importers.sample_files import (
    BEGIN_S,
    component_energy_j,
    finding_texts_of,
    single_report,
)


def aiperf_file(folder, endpoints, **more):
    """Write a run of 100 s; `endpoints` holds index, UUID and joules of each GPU, None for an
    absent value.
    """
    telemetry = {
        name: {
            "gpus": {
                f"gpu_{place}": {
                    "gpu_index": index,
                    "gpu_uuid": uuid,
                    "metrics": {}
                    if joules is None
                    else {"energy_consumption": {"unit": "J", "avg": joules}},
                }
                for place, (index, uuid, joules) in enumerate(gpus)
            }
        }
        for name, gpus in endpoints.items()
    }
    times = {"start_time": "2024-07-19T12:00:00", "end_time": "2024-07-19T12:01:40"}
    document = {**times, "request_latency": {}, "telemetry_data": {"endpoints": telemetry}, **more}
    path = folder / "profile_export_aiperf.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("uuids", [(None, None), ("GPU-a", "GPU-b")])
def test_aiperf_gpus_of_two_endpoints_with_one_index_are_added(imported, tmp_path, uuids):
    """GPU 0 of two nodes with 5,000 J and 7,000 J: 12,000 J."""
    path = aiperf_file(tmp_path, {"n1": [(0, uuids[0], 5_000)], "n2": [(0, uuids[1], 7_000)]})

    report = single_report(imported(path))

    assert {device.label: device.energy.value for device in report.devices} == {
        "GPU n1/0": 5_000,
        "GPU n2/0": 7_000,
    }
    assert component_energy_j(report) == 12_000


def test_aiperf_gpu_of_two_endpoints_with_one_uuid_is_counted_once(call, tmp_path):
    path = aiperf_file(
        tmp_path, {"n1:9400": [(0, "GPU-a", 5_000)], "n1:9401": [(0, "GPU-a", 5_001)]}
    )

    code, stdout, stderr = call("import", path, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 0
    assert "GPU 0 5,000 J" in stdout
    assert "GPU GPU-a is in two endpoints; its energy is counted once" in stderr


def test_aiperf_gpu_without_energy_is_named(call, imported, tmp_path):
    path = aiperf_file(tmp_path, {"n1": [(0, "GPU-a", 5_000), (1, "GPU-b", None)]})

    report = single_report(imported(path))
    _, _, stderr = call("import", path, "--out", tmp_path / "other.sqlite", "--timezone", "UTC")

    assert component_energy_j(report) == 5_000
    assert finding_texts_of(report, "gpus_without_energy")
    assert "has no energy of GPU GPU-b" in stderr


def test_aiperf_latency_of_unknown_unit_is_named(call, tmp_path):
    path = aiperf_file(
        tmp_path, {"n1": [(0, "GPU-a", 5_000)]}, time_to_first_token={"unit": "ticks", "avg": 3}
    )

    code, _, stderr = call("import", path, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 0
    assert "left out time_to_first_token: unknown unit 'ticks'" in stderr


@pytest.mark.parametrize(
    ("zone", "offset_h"), [("UTC", 0), ("Europe/Berlin", 2), ("America/New_York", -4)]
)
def test_aiperf_times_are_in_the_given_zone(imported, tmp_path, zone, offset_h):
    """AIPerf writes local times without a zone."""
    path = aiperf_file(tmp_path, {"n1": [(0, "GPU-a", 5_000)]})

    report = single_report(imported(path, zone=zone))

    assert (report.started_at_s, report.duration_s) == (BEGIN_S - 3_600 * offset_h, 100)


def test_aiperf_gives_work_latencies_and_counter_energy(imported, tmp_path):
    document = {
        "schema_version": "1.5",
        "benchmark_id": "abc",
        "start_time": "2024-07-19T12:00:00",
        "end_time": "2024-07-19T12:01:00",
        "request_latency": {
            "unit": "ms",
            "avg": 2_600.0,
            "p99": 3_371.0,
            "count": 20,
            "sum": 52_000.0,
        },
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


@pytest.mark.parametrize(
    ("reported", "prompt", "generated"), [(40, 2_600.0, 16_000.0), (39, 2_419.0, 29_054.0)]
)
def test_aiperf_tokens_of_all_answers_replace_its_tokenizer(
    imported, tmp_path, reported, prompt, generated
):
    """AIPerf 0.13.0 counts by its own tokenizer, besides the `usage` that the server reports."""
    tokens = {
        "request_count": {"unit": "requests", "avg": 40.0},
        "input_sequence_length": {"unit": "tokens", "count": 40, "sum": 2_419.0},
        "total_output_tokens": {"unit": "tokens", "avg": 29_054.0},
        "usage_prompt_tokens": {"unit": "tokens", "count": reported, "sum": 2_600.0},
        "usage_completion_tokens": {"unit": "tokens", "count": reported, "sum": 16_000.0},
    }

    report = single_report(imported(aiperf_file(tmp_path, {"n1": [(0, "GPU-a", 5_000)]}, **tokens)))

    assert {work.unit: work.amount for work in report.work} == {
        "requests": 40,
        "prompt_tokens": prompt,
        "generated_tokens": generated,
    }


def test_ml_energy_run_is_the_steady_state(imported, tmp_path):
    (tmp_path / "results.json").write_text(
        json.dumps(
            {"model_id": "Qwen/Qwen3-8B", "gpu_model": "H100", "steady_state_duration": 100.0}
            | {
                "steady_state_energy": 50_000.0,
                "steady_state_energy_per_token": 0.1,
                "output_throughput": 4_890.4,
            }
        )
    )
    (tmp_path / "prometheus.json").write_text(
        json.dumps({"steady_state_start_time": BEGIN_S, "steady_state_end_time": BEGIN_S + 100})
    )

    report = single_report(imported(tmp_path / "results.json"))

    assert component_energy_j(report) == pytest.approx(50_000)
    assert report.work[0].amount == pytest.approx(500_000)


VLLM_RESULT = {
    "date": "20240719-120100",
    "backend": "vllm",
    "model_id": "llama-8b",
    "request_rate": 4.0,
    "max_concurrency": None,
    "duration": 60.0,
    "completed": 240,
    "failed": 2,
    "total_input_tokens": 24_000,
    "total_output_tokens": 12_000,
    "mean_ttft_ms": 50.0,
    "median_ttft_ms": 40.0,
    "p99_ttft_ms": 200.0,
    "mean_itl_ms": 8.0,
}


def test_vllm_bench_gives_work_latencies_labels_and_times(call, imported, tmp_path):
    """60 s at 100 W of a power log are 6,000 J; the file is written at the end of the run."""
    path, log = tmp_path / "vllm.json", tmp_path / "power.csv"
    path.write_text(json.dumps(VLLM_RESULT))
    rows = [
        f"2024/07/19 12:{second // 60:02}:{second % 60:02}.000, 0, 100.00 W"
        for second in range(121)
    ]
    log.write_text("\n".join(["timestamp, index, power.draw [W]", *rows]))

    _, _, stderr = call("import", path, log, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")
    report = single_report(imported(path, log))

    assert report.duration_s == 60.0
    assert component_energy_j(report) == pytest.approx(6_000)
    assert {work.unit: work.amount for work in report.work} == {
        "requests": 240,
        "prompt_tokens": 24_000,
        "generated_tokens": 12_000,
    }
    assert report.results["ttft_seconds_p50"] == 0.04
    assert report.results["ttft_seconds_p99"] == 0.2
    assert report.results["itl_seconds_mean"] == 0.008
    assert report.labels["model"] == "llama-8b"
    assert "max_concurrency" not in report.labels
    assert finding_texts_of(report, "whole_seconds")
    assert "failed requests of 20240719-120100: 2; they are not in the work of the run" in stderr


def test_vllm_bench_file_of_several_results_gives_a_run_for_each(call, tmp_path):
    path = tmp_path / "vllm.json"
    path.write_text(
        "\n".join(
            json.dumps({**VLLM_RESULT, "date": f"20240719-12{minute}00"}) for minute in (10, 20)
        )
    )

    code, stdout, _ = call("import", path, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 0
    assert "vllm-bench-20240719-121000" in stdout
    assert "vllm-bench-20240719-122000" in stdout


def test_vllm_bench_result_with_an_invalid_date_is_refused(call, tmp_path):
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps({**VLLM_RESULT, "date": "yesterday"}))

    code, _, stderr = call("import", path, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert code == 1
    assert (
        "'yesterday' is no date such as 20261124-173045; give the file of vllm bench serve "
        "--save-result" in stderr
    )
