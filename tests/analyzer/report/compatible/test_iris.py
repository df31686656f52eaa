"""Files in the formats of iris-gpubench: names, units and energy."""

import pytest
import yaml


def test_iris_files_energy_matches_run(compatible_folder, imported_energy_j):
    assert imported_energy_j(compatible_folder("iris-gpubench")) == pytest.approx(10_000, rel=1e-6)


def test_iris_metrics_have_its_names_and_units(compatible_folder):
    result = yaml.safe_load((compatible_folder("iris-gpubench") / "metrics.yml").read_text())

    assert result["total_energy"] == pytest.approx(10_000 / 3.6e6)  # kWh
    assert result["total_carbon"] == pytest.approx(200 * 10_000 / 3.6e6)  # g
    assert result["av_carbon_forecast"] == pytest.approx(200)
    assert (result["elapsed_time"], result["device_count"], result["benchmark"]) == (20, 2, "serve")
    assert (result["av_util"], result["av_mem"], result["total_mem"]) == (80.0, 3_072.0, 81_920.0)
    assert 256 < result["av_power"] < 258  # 22 rows of 300 W, and of the 16 or 17 in use, 200 W
    assert result["av_clk_speed"] == pytest.approx(1_410)
    assert (result["score"], result["temp_threshold_slowdown"], result["av_mem_clk_speed"]) == (
        None,
        None,
        None,
    )


def test_iris_formatted_table_has_its_layout(compatible_folder):
    text = (compatible_folder("iris-gpubench") / "formatted_metrics.txt").read_text()

    assert text.startswith("GPU and Carbon Performance Results\n\n+-----")
    assert "| Total GPU Energy Consumed (kWh)     | 0.00278  |" in text
    assert "| Avg GPU Temperature (for >0.00% GPU Util.) (C) | 50.00000" in text
    lines = [line for line in text.splitlines() if line.startswith(("+", "|"))]
    assert len({len(line) for line in lines[:11]}) == 1
