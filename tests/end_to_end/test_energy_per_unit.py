"""Energy per unit of one run on a shared GPU: the same figure in every command, dashboard and summary."""

from contextlib import closing

import numpy as np
import pytest

from analyzer.assess.run import assess
from analyzer.live.watch import live_state
from analyzer.model.sample_table import table_of
from analyzer.output.live import live_document
from analyzer.sources.fleet.results import FleetRequest, fetch_fleet
from analyzer.sources.promql import InstantServer
from analyzer.studies.comparison.compare import group_member
from analyzer.studies.fleet import fleet
from exporter.contract import metrics as m
from exporter.contract.run import PhaseView, RunView
from exporter.contract.unit_energy import energies_per_unit
from exporter.contract.work import SHARE_POLICY
from tests import servers
from tests.analyzer.fleet_nodes import NodeSeries, write_prometheus_blocks
from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape, scrape_times, series_of_scrapes
from tests.analyzer.run_reports import run_frames, terminal_text
from tests.grafana.panel_values import View
from wattline.client.summary import EndedRun, summary_lines

DURATION_S, LOAD_S, POWER_W = 60.0, 20.0, 300.0
WHOLE_J = POWER_W * DURATION_S
SHARE_J = 12_000.0
"""Alone in the phase load (6,000 J); in the phase measure half of 12,000 J."""
TOKENS = 1_200.0
PER_TOKEN_J = SHARE_J / TOKENS
"""10 J; of the whole GPU 15 J, and by the share of the whole run in the phase measure 6.7 J."""
WORK = {"flop": 1e12, "generated_tokens": TOKENS, "padding_tokens": 5e4}
PHASES = {"load": (LOAD_S, POWER_W * LOAD_S), "measure": (DURATION_S - LOAD_S, POWER_W * (DURATION_S - LOAD_S))}
RUN = NodeRun(
    end_s=START_S + DURATION_S,
    labels={"model": "tiny", "experiment": "shared"},
    work=WORK,
    phases=PHASES,
    phase_work={"measure": WORK},
)
GPU = NodeGpu([(START_S - 1_000, 60), (START_S, POWER_W), (START_S + DURATION_S, 60)])


def share(t):
    """Attributed energy of the run: all of the GPU's in the phase load, half of it afterwards."""
    if t >= START_S:
        alone_s, shared_s = min(t - START_S, LOAD_S), min(max(t - START_S - LOAD_S, 0.0), DURATION_S - LOAD_S)
        labels = {"run_id": RUN.run_id, "component": "gpu", "device": GPU.uuid, "policy": SHARE_POLICY}
        yield m.RUN_ATTRIBUTED_ENERGY, labels, POWER_W * (alone_s + shared_s / 2)
        yield m.RUN_POWER_MAX, {"run_id": RUN.run_id, "gpu": GPU.index, "uuid": GPU.uuid}, POWER_W


def series(times):
    return series_of_scrapes(((t, [*scrape([GPU], RUN, t), *share(t)]) for t in times), "node:9847")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    entries = series(scrape_times(15, START_S - 300, START_S + 300))
    columns = [(entry.labels, *np.array(entry.samples, dtype=np.float64).T) for entry in entries]
    write_prometheus_blocks(folder, [NodeSeries(*column) for column in columns])
    with servers.prometheus(folder, [], flags=["--storage.tsdb.retention.time=3000d"]) as address:
        yield address


def test_report_and_compare_shared_gpu_use_the_attributed_share(tmp_path):
    frames = run_frames(tmp_path, RUN, gpus=[GPU], times=scrape_times(1, START_S - 60.5, START_S + 90), extra=share)
    report = assess(frames)
    figures = {figure.key: value for figure, value in group_member(frames, report).figures.items()}

    assert report.work[0].unit == "generated_tokens"
    assert report.work[0].energy_per_unit.value == pytest.approx(PER_TOKEN_J)
    assert report.work[0].whole_devices.value == pytest.approx(WHOLE_J / TOKENS)
    assert (report.work[0].phases, report.work[0].energy_phases) == (("measure",), ())
    assert figures["energy_per_generated_tokens_joules"].value == pytest.approx(PER_TOKEN_J)
    assert "J per generated token for the whole GPU, with the other users' part" in terminal_text(report)


def test_watch_shared_gpu_uses_the_attributed_share():
    frame = table_of(
        (one.labels, *np.array(one.samples, dtype=np.float64).T) for one in series([START_S + 50, START_S + 70])
    )
    (run,) = live_document(live_state(frame, START_S + 70, {}), "here")["runs"]

    assert (run["unit"], run["energy_per_unit_is_attributed"]) == ("generated_tokens", True)
    assert run["energy_per_unit_joules"] == pytest.approx(PER_TOKEN_J)


def test_fleet_shared_gpu_uses_the_attributed_share(prometheus):
    request = FleetRequest(("workload",), SHARE_POLICY, START_S - 60, START_S + 240)
    with closing(InstantServer(prometheus)) as server:
        (group,) = fleet(("workload",), SHARE_POLICY, fetch_fleet(server, request, print)).groups

    assert group.work["generated_tokens"].joules_per_unit == pytest.approx(PER_TOKEN_J)


def test_dashboards_shared_gpu_use_the_attributed_share(prometheus):
    view = View(prometheus, START_S + 240)
    per_unit = view.table("wattline-runs", "Energy per unit of work", "unit")

    assert view.table("wattline-runs", "Runs", "run")[RUN.run_id]["per unit"] == pytest.approx(PER_TOKEN_J)
    assert per_unit["generated_tokens"]["energy per unit"] == pytest.approx(PER_TOKEN_J)
    assert per_unit["padding_tokens"]["energy per unit"] == pytest.approx(SHARE_J / 5e4)
    by_gpu = view.table("wattline-variability", "Time and energy per unit of work, by GPU", "unit")
    assert by_gpu["generated_tokens"]["energy per unit"] == pytest.approx(PER_TOKEN_J)
    assert by_gpu["generated_tokens"]["time per unit"] == pytest.approx((DURATION_S - LOAD_S) / TOKENS)


def test_runner_shared_gpu_prints_the_attributed_share():
    phases = [
        PhaseView(
            name=name,
            started_at=0.0,
            duration_seconds=seconds,
            energy_joules={"gpu": joules},
            work=RUN.phase_work.get(name, {}),
        )
        for name, (seconds, joules) in PHASES.items()
    ]
    empty = {
        "energy_uncertainty_joules": {},
        "integrated_energy_joules": {},
        "covered_ratio": {},
        "emissions_grams": [],
    }
    run = RunView(
        **empty,
        run_id=RUN.run_id,
        workload="train",
        labels={},
        gpus=[],
        state="ended",
        outcome="ok",
        started_at=0.0,
        ended_at=DURATION_S,
        duration_seconds=DURATION_S,
        phases=phases,
        work=WORK,
        results={},
        energy_joules={"gpu": {GPU.uuid: WHOLE_J}},
        attributed_energy_joules={"gpu": {GPU.uuid: SHARE_J}},
        notes=[],
    )
    answer = run.model_copy(update={"energy_per_unit": list(energies_per_unit(run))}).model_dump()
    line = next(iter(summary_lines(EndedRun.parse(answer), "ok", None)))

    assert line.startswith(
        "10 J per generated token over the whole run, attributed to it, since others used its GPUs as well (15 "
    )
