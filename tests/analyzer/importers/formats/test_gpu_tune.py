"""Import of gpu-tune files."""

import pytest

from tests.analyzer.importers.sample_files import (
    component_energy_j,
    finding_texts_of,
    local_time,
    single_report,
)

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

    assert [
        component_energy_j(report) for report in imported(tmp_path / "training_stats.csv").values()
    ] == [
        5_800,
        5_800,
    ]


@pytest.mark.parametrize("first_batch_s", [10, 25])
def test_gpu_tune_rates_are_work_in_tokens(imported, tmp_path, first_batch_s):
    # batches of 70,000 tokens, each of 10 s after the first: the run has the 4 batches after the
    # first row
    lines = ["timestamp,tokens_per_sec,power_draw,max_watt,total_power_draw"]
    ends_s = [first_batch_s + 10 * batch for batch in range(5)]
    rates = [70_000 * count / end_s for count, end_s in enumerate(ends_s, 1)]
    lines += [
        f"{local_time(end_s)},{rate:.6f},200,225,350"
        for end_s, rate in zip(ends_s, rates, strict=True)
    ]
    (tmp_path / "inference_stats.csv").write_text("\n".join(lines))

    work = {one.unit: one for one in single_report(imported(tmp_path / "inference_stats.csv")).work}

    assert work["tokens"].amount == pytest.approx(280_000, rel=1e-6)
    assert work["tokens"].energy_per_unit.value == pytest.approx(350 * 40 / 280_000)
    assert work["steps"].amount == 4


@pytest.mark.parametrize("rates", [(0, 0, 0), ("n/a", "n/a", "n/a"), (10, 5_000, 9_000)])
def test_gpu_tune_unusable_rates_are_no_work(imported, tmp_path, rates):
    lines = ["timestamp,tokens_per_sec,power_draw,max_watt,total_power_draw"]
    lines += [f"{local_time(10 * row)},{rate},200,225,350" for row, rate in enumerate(rates)]
    (tmp_path / "inference_stats.csv").write_text("\n".join(lines))

    work = single_report(imported(tmp_path / "inference_stats.csv")).work

    assert [one.unit for one in work] == ["steps"]


def test_gpu_tune_export_and_import_keep_the_tokens(imported, tmp_path):
    # 7,000 tokens/s from the first row on, which has no rate
    lines = ["timestamp,tokens_per_sec,power_draw,max_watt,total_power_draw"]
    lines += [f"{local_time(t)},{'' if not t else 7_000},200,225,350" for t in range(0, 25, 5)]
    (tmp_path / "inference_stats.csv").write_text("\n".join(lines))

    work = {
        one.unit: one.amount
        for one in single_report(imported(tmp_path / "inference_stats.csv")).work
    }

    assert work["tokens"] == pytest.approx(140_000)
