"""Files in the formats of other tools: columns, units and energy."""

import csv
import json
import sys
import time
from contextlib import closing
from functools import cache

import pytest
import yaml

from analyzer.assess.run import assess
from analyzer.cli import main
from analyzer.sources.history import HistorySource
from analyzer.sources.runs.load import Clock, load_run
from exporter.contract import metrics as m
from tests.analyzer import experiments
from tests.analyzer.node import NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes, write_history

LONG_S = 20.0
GPU_TUNE = [
    *("timestamp", "tokens_per_sec", "temperature", "fan_speed", "memory_used", "power_draw", "gpu_utilization"),
    *("memory_utilization", "power_limit", "max_watt", "total_power_draw", "energy_per_token"),
]


@pytest.fixture
def call(capsys, monkeypatch):
    """Run the command line; return exit code, stdout and stderr."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["analyzer", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        return exit_info.value.code, *capsys.readouterr()

    yield run
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def compatible_folder(analyzer, tmp_path_factory):
    """Return the folder of a report: GPUs at 300 W and 200 W for 20 s, the second idle for 5 s, 50 tokens a second."""

    @cache
    def make(tool, workload="serve", unit="generated_tokens", loss=None):
        folder = tmp_path_factory.mktemp(tool)
        begin_s = float(int(time.time()) - 600)
        ends = [(begin_s + LONG_S, 60.0)]
        gpus = [NodeGpu([(0.0, 60.0), (begin_s, watts), *ends], index=str(i)) for i, watts in enumerate((300.0, 200.0))]
        labels, results = {"power_limit_watts": "350"}, {} if loss is None else {"loss": loss}
        run = NodeRun("job", begin_s, begin_s + LONG_S, workload, labels, work={}, results=results)
        times = scrape_times(1, begin_s - 60.3, begin_s + 60)
        series = series_of_scrapes((t, [*scrape(gpus, run, t), *extra_series(gpus, run, unit, t)]) for t in times)
        history = write_history(folder, series)
        out = folder / "out"
        options = ("--run-id", "job", "--out", out, "--compatible", tool, "--carbon", "200")
        completed = analyzer("report", "--source", history, *options, TZ="UTC")
        assert completed.returncode == 0, completed.stderr
        return out / tool

    return make


def extra_series(gpus, run, unit, t):
    for gpu in gpus:
        labels = {"gpu": gpu.index, "uuid": gpu.uuid}
        idle = gpu.index == "1" and t < run.start_s + 5
        yield m.GPU_UTILIZATION, {**labels, "engine": "gpu"}, 0.0 if idle else 0.8
        yield m.GPU_MEMORY_USED, labels, 3.0 * 2**30
        yield m.GPU_MEMORY_TOTAL, labels, 80.0 * 2**30
        yield m.GPU_TEMPERATURE, {**labels, "sensor": "gpu"}, 50.0
        yield m.GPU_CLOCK, {**labels, "domain": "graphics"}, 1.41e9
    if run.start_s <= t <= run.end_s + 600:
        units = 50.0 * (min(t, run.end_s) - run.start_s)
        yield m.RUN_WORK, {"run_id": run.run_id, "unit": unit}, units


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def imported_energy_j(call, folder, tmp_path):
    """Return the energy of the written files after `analyzer import`."""
    history = tmp_path / "again.sqlite"
    code, stdout, stderr = call("import", folder, "--out", history, "--timezone", "UTC")
    assert code == 0, stderr
    clock = Clock(time.time, time.sleep)
    with closing(HistorySource(history)) as source:
        report = assess(load_run(source, stdout.partition(":")[0], 7_200, clock, lambda _: None))
    return sum(device.energy.value for device in report.gpus)


def test_gpu_tune_file_energy_matches_all_gpus(call, compatible_folder, tmp_path):
    folder = compatible_folder("gpu-tune")

    assert imported_energy_j(call, folder, tmp_path) == pytest.approx(10_000, rel=1e-6)  # 300 + 200 W, 20 s


def test_gpu_tune_file_has_its_columns_and_units(compatible_folder):
    (path,) = compatible_folder("gpu-tune").iterdir()
    rows = rows_of(path)
    last = rows[-1]

    assert path.name == "inference_stats.csv"
    assert list(last) == GPU_TUNE
    assert (last["power_draw"], last["total_power_draw"], last["max_watt"]) == ("300", "500", "350")
    assert (last["gpu_utilization"], last["memory_used"], last["temperature"]) == ("80", "3072", "50")  # %, MiB, °C
    assert float(last["tokens_per_sec"]) == pytest.approx(50)
    assert float(last["energy_per_token"]) == pytest.approx(10)  # 500 W / 50
    assert {row["fan_speed"] for row in rows} == {""}  # unknown, not 0


def test_gpu_tune_training_has_loss_and_iterations(compatible_folder):
    (path,) = compatible_folder("gpu-tune", "llm-train", "steps", 0.25).iterdir()
    rows = rows_of(path)

    assert path.name == "training_stats.csv"
    assert list(rows[0])[:6] == ["timestamp", "epoch", "iteration", "batch", "loss", "tokens_per_sec"]
    assert [row["loss"] for row in rows] == [""] * (len(rows) - 1) + ["0.25"]
    assert {row["epoch"] + row["tokens_per_sec"] for row in rows} == {""}


def test_iris_files_energy_matches_run(call, compatible_folder, tmp_path):
    assert imported_energy_j(call, compatible_folder("iris-gpubench"), tmp_path) == pytest.approx(10_000, rel=1e-6)


def test_iris_metrics_have_its_names_and_units(compatible_folder):
    result = yaml.safe_load((compatible_folder("iris-gpubench") / "metrics.yml").read_text())

    assert result["total_energy"] == pytest.approx(10_000 / 3.6e6)  # kWh
    assert result["total_carbon"] == pytest.approx(200 * 10_000 / 3.6e6)  # g
    assert result["av_carbon_forecast"] == pytest.approx(200)
    assert (result["elapsed_time"], result["device_count"], result["benchmark"]) == (LONG_S, 2, "serve")
    assert (result["av_util"], result["av_mem"], result["total_mem"]) == (80.0, 3_072.0, 81_920.0)
    assert 256 < result["av_power"] < 258  # 22 rows of 300 W, and of the 16 or 17 in use, 200 W
    assert result["av_clk_speed"] == pytest.approx(1_410)
    assert (result["score"], result["temp_threshold_slowdown"], result["av_mem_clk_speed"]) == (None, None, None)


def test_iris_formatted_table_has_its_layout(compatible_folder):
    text = (compatible_folder("iris-gpubench") / "formatted_metrics.txt").read_text()

    assert text.startswith("GPU and Carbon Performance Results\n\n+-----")
    assert "| Total GPU Energy Consumed (kWh)     | 0.00278  |" in text
    assert "| Avg GPU Temperature (for >0.00% GPU Util.) (C) | 50.00000" in text
    lines = [line for line in text.splitlines() if line.startswith(("+", "|"))]
    assert len({len(line) for line in lines[:11]}) == 1


def test_compatible_files_need_a_folder(call):
    code, _, stderr = call("report", "--run-id", "x", "--compatible", "gpu-tune")

    assert code == 2
    assert "also give --out" in stderr


def test_gpu_tune_summary_has_one_row_per_cap(call, tmp_path):
    history = write_history(tmp_path, experiments.series(float(int(time.time()) - 1_800)))
    options = ("--experiment", experiments.SWEEP, "--out", tmp_path / "out", "--compatible", "gpu-tune")
    code, stdout, stderr = call("recommend", "--source", history, *options, "--format", "json")

    assert code == 0, stderr
    rows = rows_of(tmp_path / "out" / "gpu-tune" / "inference_summary.csv")
    assert [row["max_watt"] for row in rows] == ["400", "500"]
    # 2 GPUs x 400 W x 12 s = 9,600 J = 160 W min
    assert (rows[0]["energy_consumption_watt_min"], rows[0]["total_time_min"]) == ("160", "0.2")
    assert (rows[0]["power_draw"], rows[0]["total_power_draw"], rows[0]["gpu_utilization"]) == ("400", "800", "90")
    assert rows[0]["tokens_per_sec"] == ""  # it counts steps
    assert (tmp_path / "out" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(stdout)["sweeps"][0]["advised"] == "400 W"
