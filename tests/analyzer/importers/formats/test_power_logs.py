"""Import of power logs of nvidia-smi and wall meters, alone and with runs."""

import json

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


def tenant(folder, name, begin_s, end_s):
    path = folder / "pair" / name / "events.jsonl"
    path.parent.mkdir(parents=True)
    records = [
        {"type": "run_start", "timestamp": begin_s, "model_name": "distilgpt2", "batch_size": 8, "seq_len": 128},
        *({"type": "iteration", "iter": k, "latency_ms": 8.0} for k in range(100)),
        {"type": "run_end", "timestamp": end_s, "p99_ms": 9.0, "avg_ms": 8.0, "tokens_processed": 102_400},
        {"type": "time_elapsed", "sec": 0.9},
    ]
    path.write_text("\n".join(map(json.dumps, records)))


def test_power_log_gives_each_tenant_energy_of_its_time(imported, tmp_path):
    tenant(tmp_path / "data", "gpt2_1", BEGIN_S + 10, BEGIN_S + 20)
    tenant(tmp_path / "data", "gpt2_2", BEGIN_S + 10, BEGIN_S + 30)
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 250) for t in range(41)])

    first, second = imported(tmp_path / "data", log).values()

    assert (component_energy_j(first), component_energy_j(second)) == (pytest.approx(2_500), pytest.approx(5_000))
    assert first.labels["tenant"] == "gpt2_1"
    assert first.labels["experiment"] == "pair"
    assert {work.unit: work.amount for work in first.work} == {"prompt_tokens": 102_400, "steps": 100}
    assert first.results["latency_seconds_p99"] == pytest.approx(0.009)
    assert finding_texts_of(first, "shared")


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


def test_power_log_of_same_node_and_time_is_not_merged(call, imported, tmp_path):
    imported(write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100) for t in range(11)]), "--node", "n1")
    other = write_nvidia_smi_log(tmp_path / "other.csv", [(t, 200) for t in range(11)])

    code, _, stderr = call("import", other, "--out", tmp_path / "history.sqlite", "--node", "n1", "--timezone", "UTC")

    assert code == 1
    assert "--node" in stderr
