"""Import of wall meters and AIPowerMeter files."""

import json

import pytest

from tests.analyzer.importers.sample_files import (
    BEGIN_S,
    component_energy_j,
    finding_texts_of,
    local_time,
    single_report,
    write_nvidia_smi_log,
)


def test_wall_meter_shows_power_missed_by_sensors(imported, tmp_path):
    # sensors 300 W of the wall's 400 W over 30 s: 9,000 of 12,000 J, 25 % missed
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 300) for t in range(31)])
    plug = tmp_path / "plug.csv"
    plug.write_text("\n".join(["time,watts", *(f"{BEGIN_S + t:.0f},400" for t in range(31))]))

    report = single_report(imported(log, plug))

    assert component_energy_j(report) == pytest.approx(9_000)
    text = finding_texts_of(report, "wall_meter")[0]
    assert "12000 J" in text
    assert "3000 J (25.0 %)" in text


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
