"""Energy per unit of a run alone on its GPU and of one on a shared GPU: the same in every command
and dashboard.
"""

import json
import re

import numpy as np
import pytest

from tests import servers
from tests.analyzer.fleet_nodes import NodeSeries, write_prometheus_blocks
from tests.analyzer.node import (
    START_S,
    NodeGpu,
    NodeRun,
    scrape,
    scrape_times,
    series_of_scrapes,
    write_history,
)
from tests.analyzer.run_reports import run_frames, terminal_text
from tests.fork_server import ForkServer
from tests.grafana.panel_values import View
from wattline.client.summary import summary_lines
from wattline.contract import metrics as m
from wattline.contract.run import Run
from wattline.contract.work import SHARE_POLICY
from wattline_analyzer.compare.comparison import RunGroup, compare_groups, group_member
from wattline_analyzer.compare.gate import gate_figure
from wattline_analyzer.compare.output import comparison_output
from wattline_analyzer.core.sample_table import table_of
from wattline_analyzer.report.assess import assess
from wattline_analyzer.watch.output import live_document
from wattline_analyzer.watch.watch import live_state

ANALYZER = ForkServer("wattline_analyzer.cli", "requests", "rich.table", "scipy.stats")
DURATION_S, LOAD_S, POWER_W = 60.0, 20.0, 300.0
WHOLE_J = POWER_W * DURATION_S
SHARE_J = 12_000.0
"""Alone in the phase load (6,000 J); in the phase measure half of 12,000 J."""
TOKENS = 1_200.0
PER_TOKEN_J = SHARE_J / TOKENS
"""10 J; of the whole GPU 15 J, and by the share of the whole run in the phase measure 6.7 J."""
WORK = {"flop": 1e12, "generated_tokens": TOKENS, "padding_tokens": 5e4}
PHASES = {
    "load": (LOAD_S, POWER_W * LOAD_S),
    "measure": (DURATION_S - LOAD_S, POWER_W * (DURATION_S - LOAD_S)),
}
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
        alone_s, shared_s = (
            min(t - START_S, LOAD_S),
            min(max(t - START_S - LOAD_S, 0.0), DURATION_S - LOAD_S),
        )
        labels = {
            "run_id": RUN.run_id,
            "component": "gpu",
            "device": GPU.uuid,
            "policy": SHARE_POLICY,
        }
        yield m.RUN_ATTRIBUTED_ENERGY, labels, POWER_W * (alone_s + shared_s / 2)
        yield m.RUN_POWER_MAX, {"run_id": RUN.run_id, "gpu": GPU.index, "uuid": GPU.uuid}, POWER_W


ALONE_GPU = NodeGpu(
    [(START_S - 1_000, 60), (START_S, POWER_W), (START_S + DURATION_S, 60)], index="1"
)
ALONE = NodeRun(
    run_id="alone",
    workload="classify",
    end_s=START_S + DURATION_S,
    work={"flop": 1e12, "generated_tokens": TOKENS, "verdicts": 900.0},
)
PER_VERDICT_J = WHOLE_J / 900
"""20 J; the job declares verdicts, although it reports generated tokens as well."""


PHASED_GPU = NodeGpu(
    [(START_S - 1_000, 60), (START_S, POWER_W), (START_S + DURATION_S, 60)], index="2"
)
STEPS = 600.0
PHASED = NodeRun(
    run_id="phased",
    workload="finetune",
    end_s=START_S + DURATION_S,
    work={"steps": STEPS},
    phases=PHASES,
    phase_uncertainty_j=10.0,
    phase_work={"measure": {"steps": STEPS}},
)
PER_STEP_J = POWER_W * (DURATION_S - LOAD_S) / STEPS
"""20 J in the phase measure, in which the steps were done; 30 J of the whole run."""


def all_of_gpu(t):
    """Primary unit of the run, and its attributed energy: all of the GPU's."""
    if t >= START_S:
        yield m.RUN_WORK_UNIT, {"run_id": ALONE.run_id, "unit": "verdicts"}, 1.0
        labels = {
            "run_id": ALONE.run_id,
            "component": "gpu",
            "device": ALONE_GPU.uuid,
            "policy": SHARE_POLICY,
        }
        yield m.RUN_ATTRIBUTED_ENERGY, labels, POWER_W * min(t - START_S, DURATION_S)


def phased_share(t):
    """Attributed energy: all of the GPU's, and 5 J of a poll at the end of the run."""
    if t >= START_S:
        labels = {
            "run_id": PHASED.run_id,
            "component": "gpu",
            "device": PHASED_GPU.uuid,
            "policy": SHARE_POLICY,
        }
        yield (
            m.RUN_ATTRIBUTED_ENERGY,
            labels,
            POWER_W * min(t - START_S, DURATION_S) + 5.0 * (t >= START_S + 60),
        )
        yield (
            m.RUN_POWER_MAX,
            {"run_id": PHASED.run_id, "gpu": PHASED_GPU.index, "uuid": PHASED_GPU.uuid},
            POWER_W,
        )


def series(times):
    return series_of_scrapes(((t, [*scrape([GPU], RUN, t), *share(t)]) for t in times), "node:9847")


def series_alone(times):
    return series_of_scrapes(
        ((t, [*scrape([ALONE_GPU], ALONE, t), *all_of_gpu(t)]) for t in times), "other:9847"
    )


def series_phased(times):
    scrapes = ((t, [*scrape([PHASED_GPU], PHASED, t), *phased_share(t)]) for t in times)
    return series_of_scrapes(scrapes, "phased:9847")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prometheus")
    times = scrape_times(15, START_S - 300, START_S + 300)
    entries = [*series(times), *series_alone(times), *series_phased(times)]
    columns = [(entry.labels, *np.array(entry.samples, dtype=np.float64).T) for entry in entries]
    write_prometheus_blocks(folder, [NodeSeries(*column) for column in columns])
    with servers.prometheus(folder, [], flags=["--storage.tsdb.retention.time=3000d"]) as address:
        yield address


def test_report_and_compare_shared_gpu_use_the_attributed_share(tmp_path):
    frames = run_frames(
        tmp_path, RUN, gpus=[GPU], times=scrape_times(1, START_S - 60.5, START_S + 90), extra=share
    )
    report = assess(frames)
    figures = {figure.key: value for figure, value in group_member(frames, report).figures.items()}

    assert report.work[0].unit == "generated_tokens"
    assert report.work[0].energy_per_unit.value == pytest.approx(PER_TOKEN_J)
    assert report.work[0].whole_devices.value == pytest.approx(WHOLE_J / TOKENS)
    assert (report.work[0].phases, report.work[0].energy_phases) == (("measure",), ())
    assert figures["energy_per_generated_tokens_joules"].value == pytest.approx(PER_TOKEN_J)
    text = terminal_text(report)
    assert "J per generated token for the whole GPU, with the other users' part" in text
    assert (
        "Energy per unit is that attributed to the run, since others used its devices as well."
        in text
    )
    compared = compare_groups([RunGroup("a", (group_member(frames, report),)), RunGroup("b", ())])
    (table, *_) = comparison_output(compared).parts
    assert any(
        note.startswith("Energy per unit of a is that attributed to the runs")
        for note in table.notes
    )


def test_report_and_compare_put_the_unit_of_the_job_first(tmp_path):
    times = scrape_times(1, START_S - 60.5, START_S + 90)
    frames = run_frames(tmp_path, ALONE, gpus=[ALONE_GPU], times=times, extra=all_of_gpu)
    report = assess(frames)
    member = group_member(frames, report)
    figures = {figure.key: value for figure, value in member.figures.items()}

    assert [work.unit for work in report.work] == ["verdicts", "generated_tokens", "flop"]
    assert report.work[0].energy_per_unit.value == pytest.approx(PER_VERDICT_J)
    assert figures["energy_per_verdicts_joules"].value == pytest.approx(PER_VERDICT_J)
    assert gate_figure([RunGroup("a", (member,))]).of == "verdicts"
    assert "J per verdict" in terminal_text(report)


def test_watch_shows_the_unit_of_the_job():
    frame = table_of(
        (one.labels, *np.array(one.samples, dtype=np.float64).T)
        for one in series_alone([START_S + 50, START_S + 70])
    )
    (run,) = live_document(live_state(frame, START_S + 70, {}), "here")["runs"]

    assert (run["unit"], run["energy_per_unit_is_attributed"]) == ("verdicts", False)
    assert run["energy_per_unit_joules"] == pytest.approx(PER_VERDICT_J)


def analyzer(*arguments):
    program = ["-c", "from wattline_analyzer.cli import main; main()", *map(str, arguments)]
    return ANALYZER.run(program, {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}).stdout


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    times = scrape_times(15, START_S - 300, START_S + 300)
    return write_history(
        tmp_path_factory.mktemp("history"),
        [*series(times), *series_alone(times), *series_phased(times)],
    )


@pytest.mark.parametrize("source", ["prometheus", "history"])
def test_usage_has_the_figures_of_the_reports(request, source):
    window = ("--since", str(START_S - 60), "--until", str(START_S + 240))
    options = (
        "--by",
        "workload",
        *window,
        "--source",
        request.getfixturevalue(source),
    )
    groups = json.loads(analyzer("usage", *options, "--format", "json"))["groups"]
    table = " ".join(analyzer("usage", *options).split())
    by_workload = {group["workload"]: group["work"] for group in groups}

    assert by_workload["classify"]["verdicts"]["energy_per_unit_joules"] == pytest.approx(
        PER_VERDICT_J
    )
    assert by_workload["train"]["generated_tokens"]["energy_per_unit_joules"] == pytest.approx(
        PER_TOKEN_J
    )
    assert by_workload["finetune"]["steps"]["energy_per_unit_joules"] == pytest.approx(PER_STEP_J)
    assert " per generated token " in table
    assert " per verdict " in table
    assert "whole run " not in table
    shared = by_workload[RUN.workload]["generated_tokens"]
    assert shared["energy_per_unit_joules"] == pytest.approx(PER_TOKEN_J)


def test_report_compare_and_dashboard_use_the_phases_of_the_work(tmp_path, prometheus):
    times = scrape_times(1, START_S - 60.5, START_S + 90)
    frames = run_frames(tmp_path, PHASED, gpus=[PHASED_GPU], times=times, extra=phased_share)
    report = assess(frames)
    figures = {figure.key: value for figure, value in group_member(frames, report).figures.items()}
    row = View(prometheus, START_S + 240).table("wattline-runs", "Runs", "run")[PHASED.run_id]

    assert report.work[0].energy_per_unit.value == pytest.approx(PER_STEP_J)
    assert figures["energy_per_steps_joules"].value == pytest.approx(PER_STEP_J)
    assert row["per unit"] == pytest.approx(PER_STEP_J)
    assert re.search(r" 20\.\d* ± \S+ J per step during the phase measure", terminal_text(report))


def test_watch_uses_the_phases_of_the_work():
    frame = table_of(
        (one.labels, *np.array(one.samples, dtype=np.float64).T)
        for one in series_phased([START_S + 50, START_S + 70])
    )
    (run,) = live_document(live_state(frame, START_S + 70, {}), "here")["runs"]

    assert run["energy_per_unit_joules"] == pytest.approx(PER_STEP_J)


def test_dashboards_show_the_unit_of_the_job(prometheus):
    view = View(prometheus, START_S + 240)

    assert view.table("wattline-runs", "Runs", "run")[ALONE.run_id]["per unit"] == pytest.approx(
        PER_VERDICT_J
    )


def test_watch_shared_gpu_uses_the_attributed_share():
    frame = table_of(
        (one.labels, *np.array(one.samples, dtype=np.float64).T)
        for one in series([START_S + 50, START_S + 70])
    )
    (run,) = live_document(live_state(frame, START_S + 70, {}), "here")["runs"]

    assert (run["unit"], run["energy_per_unit_is_attributed"]) == ("generated_tokens", True)
    assert run["energy_per_unit_joules"] == pytest.approx(PER_TOKEN_J)


def test_dashboards_shared_gpu_use_the_attributed_share(prometheus):
    view = View(prometheus, START_S + 240)
    rows = view.table("wattline-runs", "Energy per unit of work", "run", "unit")
    per_unit = {unit: row for (run_id, unit), row in rows.items() if run_id == RUN.run_id}

    assert view.table("wattline-runs", "Runs", "run")[RUN.run_id]["per unit"] == pytest.approx(
        PER_TOKEN_J
    )
    assert per_unit["generated_tokens"]["energy per unit"] == pytest.approx(PER_TOKEN_J)
    assert per_unit["padding_tokens"]["energy per unit"] == pytest.approx(SHARE_J / 5e4)
    by_gpu = view.table("wattline-variability", "Time and energy per unit of work, by GPU", "unit")
    assert by_gpu["generated_tokens"]["energy per unit"] == pytest.approx(PER_TOKEN_J)
    assert by_gpu["generated_tokens"]["time per unit"] == pytest.approx(
        (DURATION_S - LOAD_S) / TOKENS
    )


def ended_run(**fields):
    """Return a run as the run API has it at its end."""
    empty = {
        "energy_uncertainty_joules": {},
        "integrated_energy_joules": {},
        "covered_ratio": {},
        "results": {},
    }
    times = {"started_at": 0.0, "ended_at": DURATION_S, "duration_seconds": DURATION_S}
    known = {
        "run_id": RUN.run_id,
        "workload": "train",
        "labels": {},
        "gpus": [],
        "state": "ended",
        "outcome": "ok",
    }
    lists = {"emissions_grams": [], "notes": [], "phases": []}
    return Run.parse(empty | times | known | lists | fields)


def test_runner_last_line_has_the_unit_of_the_job():
    energy = {"gpu": {ALONE_GPU.uuid: WHOLE_J}}
    answer = ended_run(
        run_id=ALONE.run_id, work=ALONE.work, work_unit="verdicts", energy_joules=energy
    )
    *_, line = summary_lines(answer, "ok", None)

    assert ", 20.00 J per verdict; wattline report" in line


def test_runner_shared_gpu_prints_the_attributed_share():
    phases = [
        {
            "name": name,
            "started_at": 0.0,
            "duration_seconds": seconds,
            "energy_joules": {"gpu": joules},
            "work": RUN.phase_work.get(name, {}),
        }
        for name, (seconds, joules) in PHASES.items()
    ]
    answer = ended_run(
        phases=phases,
        work=WORK,
        energy_joules={"gpu": {GPU.uuid: WHOLE_J}},
        attributed_energy_joules={"gpu": {GPU.uuid: SHARE_J}},
    )
    line = next(iter(summary_lines(answer, "ok", None)))

    assert line.startswith(
        "10.00 J per generated token over the whole run, attributed to it, since others used its "
        "GPUs as well (15.00 "
    )
