"""Output of `analyzer variability`."""

import json

import pytest

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
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.variability.load import VariedQuantity, variability_rows


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """Return a history of two GPUs with two runs each: 20 s at 1.4 GHz on GPU 0, 22 s at 1.2 GHz on
    GPU 1.
    """
    duration_s, clock_hz = (20, 22), (1.4e9, 1.2e9)
    gpus = [NodeGpu([(START_S - 500, 60), (START_S, 300)], index=str(index)) for index in range(2)]
    runs = []
    for index in range(2):
        for repeat in range(2):
            start_s = START_S + 100 * repeat + 50 * index
            labels = {"experiment": "lottery", "case": "alone", "repeat": str(repeat)}
            run = NodeRun(
                f"g{index}-{repeat}",
                start_s,
                start_s + duration_s[index],
                "sgemm",
                labels,
                work={"kernels": 10.0},
            )
            runs.append((index, run))
    scrapes = []
    for t in scrape_times(1, START_S - 60, START_S + 250):
        values = list(scrape(gpus, NodeRun("other", START_S + 230, START_S + 240), t))
        for index, run in runs:
            values += (
                run_series([gpus[index]], run, t) if run.start_s <= t <= run.end_s + 60 else []
            )
        for gpu, hz in zip(gpus, clock_hz, strict=True):
            values.append((m.GPU_CLOCK, {"gpu": gpu.index, "uuid": gpu.uuid, "domain": "sm"}, hz))
            values.append(
                (m.GPU_TEMPERATURE, {"gpu": gpu.index, "uuid": gpu.uuid, "sensor": "gpu"}, 60.0)
            )
        scrapes.append((t, values))
    return write_history(tmp_path_factory.mktemp("variability"), series_of_scrapes(scrapes))


def test_variability_command_different_caps_are_reported(analyzer, tmp_path):
    gpu = NodeGpu([(START_S - 500, 60), (START_S, 300)])
    labels = [{"experiment": "caps", "power_limit_watts": cap} for cap in ("300", "450")]
    runs = [
        NodeRun(
            f"at-{at}",
            START_S + 50 * at,
            START_S + 50 * at + 20,
            "sgemm",
            run_labels,
            work={"kernels": 10.0},
        )
        for at, run_labels in enumerate(labels)
    ]
    scrapes = []
    for t in scrape_times(1, START_S - 60, START_S + 150):
        values = list(scrape([gpu], runs[0], t))
        values += run_series([gpu], runs[1], t) if runs[1].start_s <= t else []
        scrapes.append((t, values))
    history = write_history(tmp_path, series_of_scrapes(scrapes))

    completed = analyzer(
        "variability", "--experiment", "caps", "--source", history, "--since", "36500d"
    )

    assert completed.returncode == 0, completed.stderr
    assert (
        "analyzer: the runs differ in power_limit_watts (300, 450), which counts as variation here"
        in completed.stderr
    )
    assert "seconds per kernel: 2 runs on 1 GPU\n" in completed.stdout.replace(" \n", "\n")


def test_variability_command_compares_medians_of_gpus(analyzer, history):
    command = ("variability", "--experiment", "lottery", "--source", history, "--since", "36500d")
    table, completed = analyzer(*command), analyzer(*command, "--format", "json")

    assert completed.returncode == 0, completed.stderr
    document = json.loads(completed.stdout)
    assert document["value"] == "seconds per kernel"
    assert [(gpu["gpu"], gpu["runs"], gpu["median"]) for gpu in document["gpus"]] == [
        ("GPU-00000000", 2, pytest.approx(2.0)),  # 20 s for 10 kernels
        ("GPU-00000001", 2, pytest.approx(2.2)),
    ]
    assert document["whisker_range_of_gpus_ratio"] == pytest.approx(0.2 / 2.1)
    assert document["correlations"]["sm_clock_hertz"]["r"] == pytest.approx(-1)
    assert document["correlations"]["temperature_celsius"]["r"] is None  # it did not change
    assert "correlation with sm_clock_hertz" in table.stdout


def test_variability_of_power_uses_phases_of_the_work(analyzer, tmp_path):
    """Two GPUs train at 600 W and 700 W for 20 s, between a load at 100 W and an evaluation at 60 W
    of 20 s each.
    """
    steps = {0: 600, 1: 700}
    gpus = [
        NodeGpu(
            [(START_S - 500, 60), (START_S, 100), (START_S + 20, w), (START_S + 40, 60)],
            index=str(at),
            limit_w=700,
        )
        for at, w in steps.items()
    ]
    runs = [
        NodeRun(
            f"g{at}",
            START_S,
            START_S + 60,
            labels={"experiment": "watts"},
            work={"steps": 10.0},
            phases={
                "load": (20.0, 2_000.0),
                "train": (20.0, 20.0 * watts),
                "evaluate": (20.0, 1_200.0),
            },
            phase_work={"train": {"steps": 10.0}},
        )
        for at, watts in steps.items()
    ]
    scrapes = []
    for t in scrape_times(1, START_S - 30.5, START_S + 90):
        values = list(scrape(gpus, NodeRun("other", START_S + 200, START_S + 240), t))
        for gpu, run in zip(gpus, runs, strict=True):
            values += run_series([gpu], run, t) if run.start_s <= t else []
            values += phase_starts(run, t)
            hz = 1.0e9 if START_S + 20 <= t < START_S + 40 else 2.0e8
            labels = {"gpu": gpu.index, "uuid": gpu.uuid, "domain": "sm"}
            values.append((m.GPU_CLOCK, labels, hz * (1 + int(gpu.index) / 10)))
        scrapes.append((t, values))
    history = write_history(tmp_path, series_of_scrapes(scrapes))
    source = HistorySource(history)
    clock = Clock(lambda: START_S + 3_600, lambda _: None)
    found = [load_run(source, run.run_id, 86_400, clock, lambda _: None) for run in runs]

    rows, unit = variability_rows(source, found, VariedQuantity("power"), "case", print)
    source.close()

    assert unit == "watts, mean"
    assert [run.value for run in rows] == pytest.approx([600.0, 700.0])
    assert [run.covariates["power_watts"] for run in rows] == [600.0, 700.0]
    assert [run.covariates["sm_clock_hertz"] for run in rows] == pytest.approx([1.0e9, 1.1e9])


def phase_starts(run, t):
    for at, phase in enumerate(run.phases):
        if t >= run.start_s + 20 * at:
            yield m.RUN_PHASE_START, {"run_id": run.run_id, "phase": phase}, run.start_s + 20.0 * at


def test_variability_command_unknown_experiment_is_one_line(analyzer, history):
    completed = analyzer(
        "variability", "--experiment", "none", "--source", history, "--since", "36500d"
    )

    assert completed.returncode == 1
    assert "no run with experiment=none at" in completed.stderr
