"""Mark of figures of simulated GPUs in the outputs of the studies and of the list of runs."""

import json
import sqlite3

import pytest

from tests.analyzer.golden import documents
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)

MARK = "SIMULATED hardware: figures of simulated GPUs do not describe a real GPU"
STUDIES = {
    "tenants": ("tenants", "--experiment", "pair"),
    "variability": ("variability", "--experiment", "each-gpu", "--of", "energy"),
}


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return documents.unpack(tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def simulated_history(tmp_path_factory):
    """The same history, in which all GPUs are simulated."""
    path = documents.unpack(tmp_path_factory.mktemp("simulated"))
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE series SET labels = json_set(labels, '$.name', 'SIMULATED ' || "
            "json_extract(labels, '$.name')) "
            "WHERE name = 'wattline_gpu_info'"
        )
    connection.close()
    return path


@pytest.mark.parametrize("study", STUDIES)
def test_study_of_simulated_gpus_is_marked(analyzer, history, simulated_history, study):
    command = (*STUDIES[study], "--since", "36500d", "--source")

    table = analyzer(*command, simulated_history)
    real = analyzer(*command, history)

    assert table.stdout.startswith(MARK), table.stderr
    assert "SIMULATED" not in real.stdout
    documents_read = [
        json.loads(analyzer(*command, path, "--format", "json").stdout)
        for path in (simulated_history, history)
    ]
    assert [document["simulated"] for document in documents_read] == [True, False]


def test_runs_on_simulated_gpus_are_marked(analyzer, simulated_history, steady_history):
    command = ("runs", "--since", "36500d", "--source")

    rows = json.loads(analyzer(*command, simulated_history, "--format", "json").stdout)
    table, real = (
        analyzer(*command, simulated_history).stdout,
        analyzer(*command, steady_history).stdout,
    )

    on_gpus = [row for row in rows if row["gpu_energy_joules"] is not None]
    assert on_gpus
    assert all(row["simulated"] for row in on_gpus)
    assert table.count("SIMULATED") == sum(row["simulated"] for row in rows)
    assert "Hardware" not in real


def test_recommend_of_a_single_setting_exits_one(analyzer, steady_history):
    result = analyzer(
        "recommend", "--run-id", "train-1", "--since", "36500d", "--source", steady_history
    )

    assert result.returncode == 1
    assert "nothing to compare: 1 setting" in result.stdout


@pytest.mark.parametrize("tool", ["ai-energy-score", "gpu-tune", "cyclonedx", "hugging-face"])
def test_report_files_of_other_tools_have_the_mark(analyzer, tmp_path, tool):
    gpu = NodeGpu([(START_S - 1_000, 300)], name="SIMULATED NVIDIA H200")
    times = scrape_times(1, START_S - 5, START_S + 30)
    history = write_history(
        tmp_path, series_of_scrapes((t, scrape([gpu], NodeRun(), t)) for t in times)
    )
    options = ("--source", history, "--run-id", "train-1", "--since", "36500d", "--carbon", "400")

    result = analyzer("report", *options, "--out", tmp_path / "out", "--compatible", tool)

    assert result.returncode == 0, result.stderr
    files = [" ".join(path.read_text().split()) for path in (tmp_path / "out" / tool).iterdir()]
    assert any(
        "SIMULATED hardware: the figures do not describe a real GPU" in text for text in files
    )


def test_recommend_files_of_gpu_tune_have_the_mark(analyzer, history, simulated_history, tmp_path):
    options = ("--experiment", "caps", "--since", "36500d", "--compatible", "gpu-tune")
    results = {
        path: analyzer("recommend", "--source", path, *options, "--out", tmp_path / name)
        for name, path in (("simulated", simulated_history), ("real", history))
    }

    remark = "SIMULATED hardware: the figures do not describe a real GPU."
    assert (tmp_path / "simulated" / "gpu-tune" / "REMARKS.txt").read_text() == f"{remark}\n"
    assert (
        f"the files of gpu-tune have no field for this: {remark}"
        in results[simulated_history].stderr
    )
    assert {path.name for path in (tmp_path / "real" / "gpu-tune").iterdir()} == {
        "inference_summary.csv"
    }
