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
    assert "12,000 J" in text
    assert "3,000 J (25.0 %)" in text


def write_plug(path, offsets_s, watts):
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["time,watts", *(f"{BEGIN_S + t:.0f},{watts}" for t in offsets_s)]))
    return path


@pytest.mark.parametrize("names", [("plug1.csv", "plug2.csv"), ("1/plug.csv", "2/plug.csv")])
def test_wall_meters_of_one_time_are_added(call, imported, tmp_path, names):
    """Two power supplies with 200 W and 300 W for 30 s: 15,000 J; the sensors have 9,000 J."""
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 300) for t in range(31)])
    plugs = [
        write_plug(tmp_path / name, range(31), watts)
        for name, watts in zip(names, (200, 300), strict=True)
    ]

    report = single_report(imported(log, *plugs))
    _, stdout, _ = call(
        "import", log, *plugs, "--out", tmp_path / "other.sqlite", "--timezone", "UTC"
    )

    assert "the wall meter counted 15,000 J" in finding_texts_of(report, "wall_meter")[0]
    assert "wall 15,000 J (sum of " in stdout


def test_wall_meter_logs_of_two_times_are_one_meter(imported, tmp_path):
    """400 W for 30 s in two files, with one second between them: 12,000 J, and the whole run is
    covered.
    """
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 300) for t in range(31)])
    plugs = [
        write_plug(tmp_path / "a.csv", range(16), 400),
        write_plug(tmp_path / "b.csv", range(16, 31), 400),
    ]

    report = single_report(imported(log, *plugs))

    assert "the wall meter counted 12,000 J" in finding_texts_of(report, "wall_meter")[0]


def test_wall_meter_of_another_time_is_named(call, tmp_path):
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 300) for t in range(31)])
    plug = write_plug(tmp_path / "plug.csv", range(100, 131), 400)

    code, stdout, stderr = call(
        "import", log, plug, "--out", tmp_path / "h.sqlite", "--timezone", "UTC"
    )

    assert code == 0
    assert ", wall " not in stdout
    assert f"{plug} is in no run: it has no power of a run's device at the time of a run" in stderr


def test_wall_meter_lines_without_power_are_counted(call, tmp_path):
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 300) for t in range(31)])
    plug = write_plug(tmp_path / "plug.csv", range(31), 400)
    plug.write_text(plug.read_text() + f"\n{BEGIN_S + 31:.0f},N/A\n")

    _, _, stderr = call("import", log, plug, "--out", tmp_path / "h.sqlite", "--timezone", "UTC")

    assert f"{plug}: no power in 1 line" in stderr


def test_aipowermeter_sum_of_gpus_is_not_added_to_a_log_of_each_gpu(imported, tmp_path):
    """Two GPUs with 100 W each for 10 s, also as a sum of 200 W: 2,000 J."""
    path = tmp_path / "power_metrics.json"
    records = [
        {"date": local_time(t), "metrics": {"gpu": {"nvidia_draw_absolute": 200.0}}}
        for t in range(11)
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    log = write_nvidia_smi_log(tmp_path / "log.csv", [(t, 100, 100) for t in range(11)])

    assert component_energy_j(single_report(imported(path, log))) == pytest.approx(2_000)


def test_aipowermeter_absent_domain_and_psys_are_left_out(imported, tmp_path):
    # 66 W CPU x 10 s, 12 W DRAM x 10 s, GPUs 19 + 69 W x 10 s; psys of -1 W is nothing
    records = [
        {
            "date": local_time(t, "%Y-%m-%d %H:%M:%S.%f"),
            "metrics": {
                "cpu": {
                    "intel_power": 66.0,
                    "psys_power": -1,
                    "total_dram_power": 12.0,
                    "uncore_power": [0.1],
                },
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
