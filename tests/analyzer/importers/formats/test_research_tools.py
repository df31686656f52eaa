"""Import of iris-gpubench, gpu-tune and AIPowerMeter files."""

import json

import pytest

from tests.analyzer.importers.sample_files import component_energy_j, finding_texts_of, local_time, single_report


def test_iris_energy_uses_timestamps_and_flags_claimed_total(imported, tmp_path):
    """Two V100s at 79 + 83 W with 119 samples 3.2 s apart, which iris summed as if they were 1 s apart."""
    folder = tmp_path / "results"
    folder.mkdir()
    offsets_s = [3.2 * k for k in range(119)]  # the last at 377.6 s
    lines = ["timestamp,gpu_index,utilization,power,temperature,memory"]
    lines += [
        f"{local_time(t, '%Y-%m-%d %H:%M:%S.%f')},{i},90,{(79, 83)[i]},50,6500" for t in offsets_s for i in range(2)
    ]
    (folder / "timeseries.csv").write_text("\n".join(lines))
    nominal_kwh = 162 * 118 / 3.6e6  # 0.00531 kWh, as in the title of its plot
    (folder / "metrics.yml").write_text(
        f"benchmark: synthetic_regression\nname: Tesla V100-PCIE-32GB\nelapsed_time: 377.6\n"
        f"start_time: {local_time(0, '%Y-%m-%d %H:%M:%S.%f')}\ntotal_energy: {nominal_kwh!r}\nmax_power_limit: 250.0\n"
    )

    report = single_report(imported(folder))

    assert component_energy_j(report) == pytest.approx(162 * 377.6, rel=1e-6)  # 61,171 J
    assert "19116 J" in finding_texts_of(report, "nominal_time")[0]
    assert "3.2 times too low" in finding_texts_of(report, "nominal_time")[0]
    assert report.workload == "synthetic_regression"


GPU_TUNE = "timestamp,epoch,iteration,batch,loss,tokens_per_sec,power_draw,power_limit,max_watt,total_power_draw"


def tune_row(offset_s, iteration, gpu_0_w, total_w, cap_w):
    when = local_time(offset_s, "%Y-%m-%dT%H:%M:%S.%f")
    return f"{when},1,{iteration},1,0.5,7000,{gpu_0_w},{cap_w},{cap_w},{total_w}"


def test_gpu_tune_includes_all_gpus_without_gaps(imported, tmp_path):
    # 150 W cap: 290 W of both GPUs x 20 s = 5,800 J; 175 W cap, 70 s later: 340 W x 20 s = 6,800 J
    rows = [tune_row(t, 1 + t / 10, 148, 290, 150) for t in (0, 10, 20)]
    rows += [tune_row(90 + t, 1 + t / 10, 172, 340, 175) for t in (0, 10, 20)]
    (tmp_path / "training_stats.csv").write_text("\n".join([GPU_TUNE, *rows]))

    reports = imported(tmp_path / "training_stats.csv")

    result = {report.labels["power_limit_watts"]: report for report in reports.values()}
    assert {cap: component_energy_j(report) for cap, report in result.items()} == pytest.approx(
        {"150": 5_800, "175": 6_800}
    )
    assert {cap: report.duration_s for cap, report in result.items()} == {"150": 20, "175": 20}


def test_gpu_tune_file_of_gpu_0_reports_missing_gpus(imported, tmp_path):
    lines = ["timestamp,tokens_per_sec,power_draw,max_watt"]
    lines += [f"{local_time(t)},7000,200,225" for t in (0, 5, 10)]
    (tmp_path / "inference_stats.csv").write_text("\n".join(lines))

    report = single_report(imported(tmp_path / "inference_stats.csv"))

    assert component_energy_j(report) == pytest.approx(2_000)
    assert finding_texts_of(report, "gpu0_only")


def test_gpu_tune_appended_rerun_is_a_separate_run(imported, tmp_path):
    rows = [tune_row(t, 1 + t / 10, 148, 290, 150) for t in (0, 10, 20)]
    rows += [tune_row(3_600 + t, 1 + t / 10, 148, 290, 150) for t in (0, 10, 20)]
    (tmp_path / "training_stats.csv").write_text("\n".join([GPU_TUNE, *rows]))

    assert [component_energy_j(report) for report in imported(tmp_path / "training_stats.csv").values()] == [
        5_800,
        5_800,
    ]


def test_aipowermeter_absent_domain_and_psys_are_left_out(imported, tmp_path):
    # 66 W CPU x 10 s, 12 W DRAM x 10 s, GPUs 19 + 69 W x 10 s; psys of -1 W is nothing
    records = [
        {
            "date": local_time(t, "%Y-%m-%d %H:%M:%S.%f"),
            "metrics": {
                "cpu": {"intel_power": 66.0, "psys_power": -1, "total_dram_power": 12.0, "uncore_power": [0.1]},
                "gpu": {"nvidia_draw_absolute": 88.0, "per_gpu_power_draw": {"0": 19.0, "1": 69.0}},
            },
        }
        for t in range(0, 11, 2)
    ]
    path = tmp_path / "power_metrics.json"
    path.write_text("\n".join(map(json.dumps, records)))

    report = single_report(imported(path))

    assert {c: component_energy_j(report, c) for c in ("gpu", "cpu", "dram")} == pytest.approx(
        {"gpu": 880, "cpu": 660, "dram": 120}
    )
