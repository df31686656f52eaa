"""Export of a run, and its import into a real Prometheus and VictoriaMetrics."""

import subprocess
import sys
import time
import tracemalloc
import urllib.request
from contextlib import closing

import numpy as np
import pandas as pd
import pytest

from tests import servers
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    run_series,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline.contract import metrics as m
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.runs.raw import SeriesSpool, fetch_whole_run
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.core.sources.prometheus import PrometheusSource
from wattline_analyzer.export.output import openmetrics
from wattline_analyzer.report.assess import assess

WITHIN = (START_S - 3_600, START_S + 7_200)
TEXT = 'a "quoted" \\ label\nin two lines, with é'


@pytest.fixture
def history(tmp_path):
    """Return one GPU at 300 W for 20 s, scraped each second, and a run on the same node an hour
    later.
    """
    gpu = NodeGpu([(START_S - 100, 60), (START_S, 300), (START_S + 20, 60)])
    run = NodeRun(
        start_s=START_S, end_s=START_S + 20, labels={"model": TEXT}, results={"loss": 1e-7}
    )
    later = NodeRun("later", START_S + 3_600, START_S + 3_610)
    times = scrape_times(1, START_S - 60.25, START_S + 60)
    scrapes = [(t, scrape([gpu], run, t)) for t in times]
    scrapes += [
        (t, run_series([gpu], later, t)) for t in scrape_times(1, START_S + 3_600, START_S + 3_615)
    ]
    return write_history(tmp_path, series_of_scrapes(scrapes, instance="node:9847"))


def samples_of(source, run_id="train-1"):
    """Return all samples of the run as a set."""
    with closing(source):
        frame = table_of(
            entry
            for part in fetch_whole_run(source, run_id, WITHIN, 120, lambda _: None)
            for entry in part
        )
    metrics = frame.texts("metric")
    return {
        (round(row.t, 3), row.value, metric, row.instance, *sorted(row.labels.items()))
        for metric, row in zip(metrics, frame.rows(), strict=True)
    }


def energy_of(source):
    with closing(source):
        clock = Clock(lambda: START_S + 4_000, time.sleep)
        report = assess(load_run(source, "train-1", 7_200, clock, lambda _: None))
    return report.headline.value, report.labels["model"]


@pytest.fixture
def exported(analyzer, history, tmp_path):
    out = tmp_path / "run.om"
    completed = analyzer(
        "export", "--source", history, "--since", "99999d", "--run-id", "train-1", "--out", out
    )
    assert completed.returncode == 0, completed.stderr
    assert "create-blocks-from openmetrics" in completed.stderr
    return out


def test_export_promtool_blocks_give_prometheus_same_samples(exported, history, tmp_path):
    promtool = servers.require("promtool")
    folder = tmp_path / "server"
    (folder / "prometheus").mkdir(parents=True)
    created = subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", exported, folder / "prometheus"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert created.returncode == 0, created.stderr

    with servers.prometheus(folder, [], flags=["--storage.tsdb.retention.time=30y"]) as address:
        assert samples_of(PrometheusSource(address)) == samples_of(HistorySource(history))
        assert energy_of(PrometheusSource(address)) == (pytest.approx(6_000), TEXT)


def test_export_openmetrics_is_imported_by_victoria_metrics(exported, history, tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with servers.victoria_metrics(folder, [], flags=["-retentionPeriod=30y"]) as address:
        request = urllib.request.Request(
            f"{address}/api/v1/import/prometheus", data=exported.read_bytes()
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 204
        expected = samples_of(HistorySource(history))
        deadline = time.monotonic() + 60
        while True:  # imported samples are visible after a second
            try:
                result = samples_of(PrometheusSource(address))
            except FetchError as error:
                result = str(error)
            if result == expected or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        assert result == expected


def test_export_memory_is_independent_of_run_length(tmp_path):
    """Forty series of 20,000 samples are 13 MB; only one series is in memory at a time."""
    (tmp_path / "first").mkdir()
    first = SeriesSpool(tmp_path / "first")
    first.add([({"__name__": m.GPU_POWER.name}, np.zeros(1), np.zeros(1))])
    assert len(list(first.series())) == 1  # modules that are imported on first use are not traced
    spool = SeriesSpool(tmp_path)
    t = np.arange(20_000.0)
    tracemalloc.start()
    for at in range(0, len(t), 2_000):
        for gpu in range(40):
            labels = {
                "__name__": m.GPU_POWER.name,
                "gpu": str(gpu),
                "uuid": f"GPU-{gpu}",
                "job": "a",
            }
            spool.add([(labels, t[at : at + 2_000], t[at : at + 2_000] + gpu)])
    count = sum(len(times) for _, times, _ in spool.series())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 40 * 20_000
    assert peak_bytes < 3e6


def test_export_excludes_other_runs_and_samples_beyond_margin(exported):
    text = exported.read_text()

    assert "later" not in text
    times = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith(m.GPU_POWER.name)
    ]
    assert (min(times), max(times)) == (START_S - 60.25, START_S + 59.75)


def test_export_openmetrics_family_names_and_escapes():
    energy = {"__name__": m.GPU_ENERGY.name, "gpu": "0", "uuid": "GPU-a"}
    info = {"__name__": m.RUN_INFO.name, "run_id": "r", "label_x": 'a"\n\\'}
    series = [(energy, np.array([1.5]), np.array([7.0])), (info, np.array([2.0]), np.array([1.0]))]

    lines = "".join(openmetrics(series)).splitlines()

    assert "# TYPE wattline_gpu_energy_joules counter" in lines
    assert 'wattline_gpu_energy_joules_total{gpu="0",uuid="GPU-a"} 7.0 1.500' in lines
    assert 'wattline_run_info{label_x="a\\"\\n\\\\",run_id="r"} 1.0 2.000' in lines
    assert lines[-1] == "# EOF"


def test_export_csv_has_column_per_label(analyzer, history, tmp_path):
    out = tmp_path / "run.csv"

    completed = analyzer(
        "export", "--source", history, "--since", "99999d", "--run-id", "train-1", "--out", out
    )

    assert completed.returncode == 0, completed.stderr
    table = pd.read_csv(out, keep_default_na=False)
    power = table[table["metric"] == m.GPU_POWER.name]
    assert list(table.columns[:4]) == ["t", "metric", "value", "instance"]
    assert set(power["value"]) == {60.0, 300.0}
    assert set(power["instance"]) == {"node:9847"}


def test_export_parquet_equals_csv(analyzer, history, tmp_path):
    for name in ("run.parquet", "run.csv"):
        options = (
            "--source",
            history,
            "--since",
            "99999d",
            "--run-id",
            "train-1",
            "--out",
            tmp_path / name,
        )
        completed = analyzer("export", *options)
        assert completed.returncode == 0, completed.stderr

    back = pd.read_parquet(tmp_path / "run.parquet")
    table = pd.read_csv(
        tmp_path / "run.csv", keep_default_na=False, dtype=dict.fromkeys(back.columns[3:], "str")
    )
    assert len(back) > 1_000
    assert (back["t"].dtype, back["value"].dtype) == ("float64", "float64")
    for name in table.columns:
        assert back[name].tolist() == table[name].tolist(), name


def test_export_parquet_without_library_names_install(history, tmp_path):
    out = tmp_path / "run.parquet"
    absent = (
        "import sys; sys.modules['pyarrow'] = None; from wattline_analyzer.cli import main; main()"
    )
    options = [
        "export",
        "--source",
        history,
        "--since",
        "99999d",
        "--run-id",
        "train-1",
        "--out",
        out,
    ]
    completed = subprocess.run(
        [sys.executable, "-c", absent, *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert completed.returncode == 1
    assert "in the clone of Wattline, run: pip install '.[parquet]'" in completed.stderr
    assert not out.exists()


def test_commands_load_no_slow_package(history):
    """Their imports alone take half as long as a report, or longer."""
    slow = {"pandas", "pyarrow", "pydantic", "requests", "scipy.optimize", "scipy.stats", "yaml"}
    prelude = f"import sys, atexit; atexit.register(lambda: print({slow} & set(sys.modules)))"
    program = f"{prelude}; from wattline_analyzer.cli import main; main()"
    options = [
        "report",
        "--run-id",
        "train-1",
        "--source",
        history,
        "--since",
        "99999d",
        "--format",
        "json",
    ]
    completed = subprocess.run(
        [sys.executable, "-c", program, *map(str, options)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert completed.stdout.splitlines()[-1] == "set()"


def test_export_existing_file_is_not_overwritten(analyzer, history, tmp_path):
    out = tmp_path / "run.csv"
    out.write_text("mine")

    completed = analyzer(
        "export", "--source", history, "--since", "99999d", "--run-id", "train-1", "--out", out
    )

    assert completed.returncode == 1
    assert out.read_text() == "mine"


def test_export_unknown_run_is_one_line(analyzer, history, tmp_path):
    completed = analyzer(
        "export", "--source", history, "--run-id", "nowhere", "--out", tmp_path / "run.csv"
    )

    assert completed.returncode == 1
    assert "no run 'nowhere'" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_export_unknown_suffix_requires_format(analyzer, history, tmp_path):
    completed = analyzer(
        "export", "--source", history, "--run-id", "train-1", "--out", tmp_path / "run"
    )

    assert completed.returncode == 2
    assert "--format" in completed.stderr


def test_export_help_names_the_run_id_once_and_not_as_required(analyzer):
    text = analyzer("export", "--help").stdout
    lines = text.splitlines()

    assert lines[0] == "Usage: analyzer export [OPTIONS] [RUN_ID]"
    assert next(line for line in lines if "--run-id" in line).split()[:2] == ["--run-id", "ID"]
    assert text.count("[required]") == 1  # of --out


@pytest.mark.parametrize("run_id", [("train-1",), ("--run-id", "train-1")])
def test_export_takes_the_run_id_as_argument_or_option(analyzer, history, tmp_path, run_id):
    out = tmp_path / "run.csv"

    completed = analyzer("export", *run_id, "--source", history, "--since", "99999d", "--out", out)

    assert completed.returncode == 0, completed.stderr
    assert out.exists()


def test_export_without_run_id_is_one_line(analyzer, tmp_path):
    completed = analyzer("export", "--out", tmp_path / "run.csv")

    assert completed.returncode == 2
    assert completed.stderr.endswith(
        "no run is named; give its ID, which analyzer runs lists; see analyzer export --help\n"
    )
