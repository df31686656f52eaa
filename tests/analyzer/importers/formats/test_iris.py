"""Import of iris-gpubench files."""

from contextlib import closing

import pytest

from tests.analyzer.importers.sample_files import (
    component_energy_j,
    finding_texts_of,
    local_time,
    single_report,
)
from wattline.contract import metrics as m
from wattline_analyzer.core.sources.history import HistorySource


def test_iris_energy_uses_timestamps_and_flags_claimed_total(imported, tmp_path):
    """Two V100s at 79 + 83 W with 119 samples 3.2 s apart, which iris summed as if they were 1 s
    apart.
    """
    folder = tmp_path / "results"
    folder.mkdir()
    offsets_s = [3.2 * k for k in range(119)]  # the last at 377.6 s
    lines = ["timestamp,gpu_index,utilization,power,temperature,memory"]
    lines += [
        f"{local_time(t, '%Y-%m-%d %H:%M:%S.%f')},{i},90,{(79, 83)[i]},50,6500"
        for t in offsets_s
        for i in range(2)
    ]
    (folder / "timeseries.csv").write_text("\n".join(lines))
    nominal_kwh = 162 * 118 / 3.6e6  # 0.00531 kWh, as in the title of its plot
    (folder / "metrics.yml").write_text(
        f"benchmark: synthetic_regression\nname: Tesla V100-PCIE-32GB\nelapsed_time: 377.6\n"
        f"start_time: {local_time(0, '%Y-%m-%d %H:%M:%S.%f')}\ntotal_energy: "
        f"{nominal_kwh!r}\nmax_power_limit: 250.0\n"
        "total_mem: 32768\n"
    )

    report = single_report(imported(folder))
    with closing(HistorySource(tmp_path / "history.sqlite")) as history:
        memory = history.fetch(
            [m.GPU_MEMORY_TOTAL], {}, report.started_at_s - 1, report.ended_at_s + 1
        )

    assert set(memory.value) == {32_768 * 2**20}
    assert component_energy_j(report) == pytest.approx(162 * 377.6, rel=1e-6)  # 61,171 J
    assert "19,116 J" in finding_texts_of(report, "nominal_time")[0]
    assert "3.2 times too low" in finding_texts_of(report, "nominal_time")[0]
    assert report.workload == "synthetic_regression"


def test_iris_totals_without_samples_are_a_run_without_energy(call, imported, tmp_path):
    """The published run of 245.6 s: its 0.00993 kWh use the nominal interval, so they are a claim
    of the file.
    """
    folder = tmp_path / "iris-gpubench-results"
    folder.mkdir()
    start = local_time(0, "%Y-%m-%d %H:%M:%S")
    (folder / "metrics.yml").write_text(
        "benchmark: synthetic_regression\nelapsed_time: 245.6\ntotal_energy: "
        "0.00993\ntotal_carbon: 1.42\n"
        f"score: 230.1\nstart_datetime: {start}\n"
    )
    (folder / "other.yml").write_text("a: 1\n")

    report = single_report(imported(folder))
    code, stdout, stderr = call(
        "import", folder / "metrics.yml", "--out", tmp_path / "single.sqlite"
    )

    assert (report.headline, report.duration_s) == (None, pytest.approx(245.6))
    assert report.results["claimed_energy_joules"] == pytest.approx(0.00993 * 3.6e6)
    assert report.results["iris_score"] == 230.1
    assert code == 0
    assert "has totals without samples: its energy cannot be checked" in stderr
    assert "other.yml" not in stderr
    assert "analyzer report --source" in stdout


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("start_time: soon", "'soon' is neither a date nor a Unix time"),
        ("max_power_limit: 99999", "implausible GPU power in W: 99,999"),
        ("start_time: 2024-10-27 01:30:00", "occurs twice"),
    ],
)
def test_iris_metrics_that_cannot_be_read_are_refused(call, tmp_path, line, cause):
    rows = [f"{local_time(t)},0,100" for t in range(11)]
    (tmp_path / "timeseries.csv").write_text("\n".join(["timestamp,gpu_index,power", *rows]))
    (tmp_path / "metrics.yml").write_text(f"{line}\nelapsed_time: 10\n")

    code, _, stderr = call(
        "import", tmp_path, "--out", tmp_path / "h.sqlite", "--timezone", "Europe/London"
    )

    assert code == 1
    assert f"cannot import {tmp_path / 'metrics.yml'}: " in stderr
    assert cause in stderr


def test_iris_samples_newest_first_have_the_same_energy(imported, tmp_path):
    """100 W for 10 s: 1,000 J."""
    rows = [f"{local_time(t)},0,100" for t in range(10, -1, -1)]
    (tmp_path / "timeseries.csv").write_text("\n".join(["timestamp,gpu_index,power", *rows]))

    assert component_energy_j(
        single_report(imported(tmp_path / "timeseries.csv"))
    ) == pytest.approx(1_000)
