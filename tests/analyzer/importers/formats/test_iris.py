"""Import of iris-gpubench files."""

from contextlib import closing

import pytest

from analyzer.sources.history import HistorySource
from exporter.contract import metrics as m
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
        "total_mem: 32768\n"
    )

    report = single_report(imported(folder))
    with closing(HistorySource(tmp_path / "history.sqlite")) as history:
        memory = history.fetch([m.GPU_MEMORY_TOTAL], {}, report.started_at_s - 1, report.ended_at_s + 1)

    assert set(memory.value) == {32_768 * 2**20}
    assert component_energy_j(report) == pytest.approx(162 * 377.6, rel=1e-6)  # 61,171 J
    assert "19116 J" in finding_texts_of(report, "nominal_time")[0]
    assert "3.2 times too low" in finding_texts_of(report, "nominal_time")[0]
    assert report.workload == "synthetic_regression"
