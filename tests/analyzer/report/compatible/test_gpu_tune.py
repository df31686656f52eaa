"""Files in the formats of gpu-tune: columns, units and energy."""

import csv
import json
import time

import pytest

from tests.analyzer import experiments
from tests.analyzer.node import write_history

GPU_TUNE = [
    *(
        "timestamp",
        "tokens_per_sec",
        "temperature",
        "fan_speed",
        "memory_used",
        "power_draw",
        "gpu_utilization",
    ),
    *("memory_utilization", "power_limit", "max_watt", "total_power_draw", "energy_per_token"),
]


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_gpu_tune_file_energy_matches_all_gpus(compatible_folder, imported_energy_j):
    folder = compatible_folder("gpu-tune")

    assert imported_energy_j(folder) == pytest.approx(10_000, rel=1e-6)  # 300 + 200 W, 20 s


def test_gpu_tune_file_has_its_columns_and_units(compatible_folder):
    (path,) = compatible_folder("gpu-tune").iterdir()
    rows = rows_of(path)
    last = rows[-1]

    assert path.name == "inference_stats.csv"
    assert list(last) == GPU_TUNE
    assert (last["power_draw"], last["total_power_draw"], last["max_watt"]) == ("300", "500", "350")
    assert (last["gpu_utilization"], last["memory_used"], last["temperature"]) == (
        "80",
        "3072",
        "50",
    )  # %, MiB, °C
    assert float(last["tokens_per_sec"]) == pytest.approx(50)
    assert float(last["energy_per_token"]) == pytest.approx(10)  # 500 W / 50
    assert {row["fan_speed"] for row in rows} == {""}  # unknown, not 0


def test_gpu_tune_training_has_loss_and_iterations(compatible_folder):
    (path,) = compatible_folder("gpu-tune", "llm-train", "steps", 0.25).iterdir()
    rows = rows_of(path)

    assert path.name == "training_stats.csv"
    assert list(rows[0])[:6] == [
        "timestamp",
        "epoch",
        "iteration",
        "batch",
        "loss",
        "tokens_per_sec",
    ]
    assert all(row["iteration"].isdecimal() for row in rows)
    assert [row["loss"] for row in rows] == [""] * (len(rows) - 1) + ["0.25"]
    assert {row["epoch"] + row["tokens_per_sec"] for row in rows} == {""}


def test_compatible_files_need_a_folder(call):
    code, _, stderr = call("report", "--run-id", "x", "--compatible", "gpu-tune")

    assert code == 2
    assert "also give --out" in stderr


def test_gpu_tune_summary_has_one_row_per_cap(call, tmp_path):
    history = write_history(tmp_path, experiments.series(float(int(time.time()) - 1_800)))
    options = (
        "--experiment",
        experiments.SWEEP,
        "--out",
        tmp_path / "out",
        "--compatible",
        "gpu-tune",
    )
    code, stdout, stderr = call("recommend", "--source", history, *options, "--format", "json")

    assert code == 0, stderr
    rows = rows_of(tmp_path / "out" / "gpu-tune" / "inference_summary.csv")
    assert [row["max_watt"] for row in rows] == ["400", "500"]
    # 2 GPUs x 400 W x 12 s = 9,600 J = 160 W min
    assert (rows[0]["energy_consumption_watt_min"], rows[0]["total_time_min"]) == ("160", "0.2")
    assert (rows[0]["power_draw"], rows[0]["total_power_draw"], rows[0]["gpu_utilization"]) == (
        "400",
        "800",
        "90",
    )
    assert rows[0]["tokens_per_sec"] == ""  # it counts steps
    assert (tmp_path / "out" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(stdout)["sweeps"][0]["advised"] == "400 W"
