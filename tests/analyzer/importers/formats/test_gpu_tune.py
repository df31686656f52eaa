"""Import of gpu-tune files."""

import pytest

from tests.analyzer.importers.sample_files import component_energy_j, finding_texts_of, local_time, single_report

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
