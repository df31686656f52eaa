from __future__ import annotations

import sys
import time
from contextlib import closing
from functools import cache

import pytest

from tests.analyzer.node import (
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from wattline.contract import metrics as m
from wattline_analyzer.cli import main
from wattline_analyzer.core.runs.load import Clock, load_run
from wattline_analyzer.core.sources.history import HistorySource
from wattline_analyzer.report.assess import assess

DURATION_S = 20.0


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
    """Return the folder of a report: GPUs at 300 W and 200 W for 20 s, the second idle for 5 s, 50
    units a second.
    """

    @cache
    def make(tool, workload="serve", unit="generated_tokens", loss=None, rates=()):
        folder = tmp_path_factory.mktemp(tool)
        begin_s = float(int(time.time()) - 600)
        ends = [(begin_s + DURATION_S, 60.0)]
        gpus = [
            NodeGpu([(0.0, 60.0), (begin_s, watts), *ends], index=str(i))
            for i, watts in enumerate((300.0, 200.0))
        ]
        labels, results = {"power_limit_watts": "350"}, {} if loss is None else {"loss": loss}
        run = NodeRun(
            "job", begin_s, begin_s + DURATION_S, workload, labels, work={}, results=results
        )
        times = scrape_times(1, begin_s - 60.3, begin_s + 60)
        rates = dict(rates) | {unit: 50.0}
        series = series_of_scrapes(
            (t, [*scrape(gpus, run, t), *extra_series(gpus, run, rates, t)]) for t in times
        )
        history = write_history(folder, series)
        out = folder / "out"
        options = ("--run-id", "job", "--out", out, "--compatible", tool, "--carbon", "200")
        completed = analyzer("report", "--source", history, *options, TZ="UTC")
        assert completed.returncode == 0, completed.stderr
        return out / tool

    return make


def extra_series(gpus, run, rates, t):
    for gpu in gpus:
        labels = {"gpu": gpu.index, "uuid": gpu.uuid}
        idle = gpu.index == "1" and t < run.start_s + 5
        yield m.GPU_UTILIZATION, {**labels, "engine": "gpu"}, 0.0 if idle else 0.8
        yield m.GPU_MEMORY_USED, labels, 3.0 * 2**30
        yield m.GPU_MEMORY_TOTAL, labels, 80.0 * 2**30
        yield m.GPU_TEMPERATURE, {**labels, "sensor": "gpu"}, 50.0
        yield m.GPU_CLOCK, {**labels, "domain": "graphics"}, 1.41e9
    if run.start_s <= t <= run.end_s + 600:
        for unit, rate in rates.items():
            yield (
                m.RUN_WORK,
                {"run_id": run.run_id, "unit": unit},
                rate * (min(t, run.end_s) - run.start_s),
            )


@pytest.fixture
def imported_energy_j(call, tmp_path):
    """Return a function that gives the energy of the written files after `analyzer import`."""

    def energy_j(folder):
        history = tmp_path / "again.sqlite"
        code, stdout, stderr = call("import", folder, "--out", history, "--timezone", "UTC")
        assert code == 0, stderr
        clock = Clock(time.time, time.sleep)
        with closing(HistorySource(history)) as source:
            report = assess(
                load_run(source, stdout.partition(":")[0], 7_200, clock, lambda _: None)
            )
        return sum(device.energy.value for device in report.gpus)

    return energy_j
