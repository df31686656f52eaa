"""Import of power logs of nvidia-smi."""

import pytest

from tests.analyzer.importers.sample_files import (
    BEGIN_S,
    component_energy_j,
    finding_texts_of,
    single_report,
    write_nvidia_smi_log,
)


def test_nvidia_smi_log_includes_all_gpus_by_timestamps(imported, tmp_path):
    # GPU 0: 200 W x 30 s = 6,000 J; GPU 1: 300 W x 30 s = 9,000 J
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(0.5 + t, 200, 300) for t in range(31)])

    report = single_report(imported(log))

    assert component_energy_j(report) == pytest.approx(15_000, rel=1e-9)
    assert [device.device for device in report.devices] == ["GPU-a", "GPU-b"]
    assert all(device.energy.half is None for device in report.devices)
    assert "power sampled every 1 s" in finding_texts_of(report, "imported")[0]
    assert finding_texts_of(report, "whole_log")


def test_nvidia_smi_log_local_time_uses_given_zone(imported, tmp_path):
    report = single_report(
        imported(write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)]), zone="+01:00")
    )

    assert report.started_at_s == BEGIN_S - 3_600


def test_power_log_idle_time_gives_idle_power(imported, tmp_path):
    # 60 s idle at 50 W, 40 s at 300 W, 60 s idle at 50 W: the run is 300 W x 40 s = 12,000 J, net 250 W x 40 s
    load = [(t, 50 if t < 60 or t > 100 else 300) for t in range(161)]
    log = write_nvidia_smi_log(tmp_path / "log.csv", load)

    report = single_report(imported(log, "--start", BEGIN_S + 60, "--end", BEGIN_S + 100, "--run-id", "burst"))

    assert component_energy_j(report) == pytest.approx(12_000, rel=1e-9)
    assert report.devices[0].idle_power_w.value == pytest.approx(50)
    assert report.devices[0].net.value == pytest.approx(10_000)
    assert not finding_texts_of(report, "whole_log")


def test_power_log_gap_is_not_integrated(imported, tmp_path):
    # 100 W in [0, 20] and [40, 60]: 4,000 J are known, and a third of the minute is not
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in (*range(21), *range(40, 61))])

    report = single_report(imported(log))

    assert component_energy_j(report) == pytest.approx(4_000, rel=1e-9)
    assert report.devices[0].covered_ratio == pytest.approx(2 / 3)
    assert "their energy is not included" in finding_texts_of(report, "gap")[0]
    assert "mean power of the run are higher" in finding_texts_of(report, "uncovered")[0]


def test_power_log_of_same_node_and_time_is_not_merged(call, imported, tmp_path):
    imported(write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)]), "--node", "n1")
    other = write_nvidia_smi_log(tmp_path / "other.csv", [(t, 200) for t in range(11)])

    code, _, stderr = call("import", other, "--out", tmp_path / "history.sqlite", "--node", "n1", "--timezone", "UTC")

    assert code == 1
    assert "--node" in stderr
