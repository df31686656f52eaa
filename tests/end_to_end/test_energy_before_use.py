"""Run whose process uses its GPU late: the energy before that is not attributed, and the GPU is not
shared.
"""

import numpy as np
import pytest

from tests import servers
from tests.analyzer.fleet_nodes import NodeSeries, write_prometheus_blocks
from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes
from tests.analyzer.run_reports import run_frames
from tests.grafana.panel_values import View
from wattline.contract import metrics as m
from wattline.contract.work import SHARE_POLICY
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.report.assess import assess
from wattline_analyzer.watch.output import live_document
from wattline_analyzer.watch.watch import live_state

DURATION_S, LOAD_S, FIRST_USE_S, POWER_W = 60.0, 20.0, 10.0, 300.0
BEFORE_USE_J = POWER_W * FIRST_USE_S
TOKENS = 1_200.0
PER_TOKEN_J = POWER_W * (DURATION_S - LOAD_S) / TOKENS
"""10 J in the phase measure; 12.5 J by the share of the whole run, which is right on a shared GPU
only.
"""
WORK = {"generated_tokens": TOKENS}
PHASES = {
    "load": (LOAD_S, POWER_W * LOAD_S),
    "measure": (DURATION_S - LOAD_S, POWER_W * (DURATION_S - LOAD_S)),
}
RUN = NodeRun(end_s=START_S + DURATION_S, work=WORK, phases=PHASES, phase_work={"measure": WORK})
GPU = NodeGpu([(START_S - 1_000, 60), (START_S, POWER_W), (START_S + DURATION_S, 60)])


def share(t):
    if t >= START_S + FIRST_USE_S:
        labels = {"run_id": RUN.run_id, "component": "gpu", "device": GPU.uuid}
        share_j = POWER_W * (min(t - START_S, DURATION_S) - FIRST_USE_S)
        yield m.RUN_ATTRIBUTED_ENERGY, labels | {"policy": SHARE_POLICY}, share_j
        yield m.RUN_ENERGY_BEFORE_USE, labels, BEFORE_USE_J
        yield m.RUN_POWER_MAX, {"run_id": RUN.run_id, "gpu": GPU.index, "uuid": GPU.uuid}, POWER_W


def series(times):
    return series_of_scrapes(((t, [*scrape([GPU], RUN, t), *share(t)]) for t in times), "node:9847")


def test_report_of_late_first_use_is_of_the_phases(tmp_path):
    frames = run_frames(
        tmp_path, RUN, gpus=[GPU], times=scrape_times(1, START_S - 60.5, START_S + 90), extra=share
    )
    (work,) = assess(frames).work
    assert work.energy_per_unit.value == pytest.approx(PER_TOKEN_J)
    assert work.energy_phases == ("measure",)


def test_watch_of_late_first_use_is_of_the_phases():
    table = table_of(
        (one.labels, *np.array(one.samples, dtype=np.float64).T)
        for one in series([START_S + 50, START_S + 70])
    )
    (run,) = live_document(live_state(table, START_S + 70, {}), "here")["runs"]
    assert not run["energy_per_unit_is_attributed"]
    assert run["energy_per_unit_joules"] == pytest.approx(PER_TOKEN_J)


def test_dashboards_of_late_first_use_are_of_the_phases(tmp_path):
    entries = series(scrape_times(15, START_S - 300, START_S + 300))
    columns = [(entry.labels, *np.array(entry.samples, dtype=np.float64).T) for entry in entries]
    write_prometheus_blocks(tmp_path, [NodeSeries(*column) for column in columns])
    with servers.prometheus(tmp_path, [], flags=["--storage.tsdb.retention.time=3000d"]) as address:
        view = View(address, START_S + 240)
        assert view.table("wattline-runs", "Runs", "run")[RUN.run_id]["per unit"] == pytest.approx(
            PER_TOKEN_J
        )
