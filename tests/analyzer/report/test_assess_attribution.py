"""Attributed energy of a run on devices that other processes use as well."""

import io
import json
from dataclasses import replace
from html import unescape

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun
from tests.analyzer.run_reports import (
    POWER_STEPS,
    finding_codes,
    finding_texts,
    run_frames,
    run_report,
    terminal_text,
)
from wattline.contract import metrics as m
from wattline.figures import Figure
from wattline_analyzer.core.documents import as_json
from wattline_analyzer.core.run_report import Work
from wattline_analyzer.core.terminal import console
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.boundaries import energy_boundaries
from wattline_analyzer.report.document import report_document
from wattline_analyzer.report.html.page import html_page
from wattline_analyzer.report.terminal import terminal_report

GPU = {"component": "gpu", "device": "GPU-00000000"}
CPU = {"component": "cpu", "device": "0"}


def share(idle_shared_j, idle_apart_j, device=GPU):
    def extra(t):
        if t >= START_S:
            labels = {"run_id": "train-1", **device}
            yield m.RUN_ATTRIBUTED_ENERGY, {**labels, "policy": "idle_shared"}, idle_shared_j
            yield m.RUN_ATTRIBUTED_ENERGY, {**labels, "policy": "idle_apart"}, idle_apart_j
            yield m.RUN_ATTRIBUTED_ENERGY, {**labels, "run_id": "", "policy": "idle_apart"}, 1e6

    return extra


def test_attribution_shared_gpu_has_energy_and_share_by_policy(tmp_path):
    frames = run_frames(tmp_path, extra=share(3_000.0, 2_400.0))
    report = assess(frames)
    text = unescape(html_page(report, frames, frames.raw, b""))
    target = io.StringIO()
    console(target).print(terminal_report(report))

    assert report.headline.value == 6_000  # 300 W x 20 s
    assert report.energies.shares == {"gpu": {"idle_shared": 3_000, "idle_apart": 2_400}}
    assert "3,000 J by idle_shared" in target.getvalue()
    assert "idle_apart: its share by load of the power above idle" in target.getvalue()
    assert "Energy attributed to the run" in text
    assert ">3,000 J<" in text
    document = json.loads(as_json(report_document(report)))
    assert document["attributed_energy"]["gpu"] == {
        "idle_shared_joules": 3_000,
        "idle_apart_joules": 2_400,
    }
    assert document["devices"][0]["attributed_energy_idle_apart_joules"] == 2_400
    assert document["energy"]["gpu"]["energy_joules"] == 6_000


def test_attribution_finding_differs_for_processes_and_other_runs(tmp_path):
    alone, other_runs = tmp_path / "alone", tmp_path / "beside"
    alone.mkdir(), other_runs.mkdir()

    ((subject, text),) = finding_texts(run_report(alone, extra=share(3_000.0, 2_400.0)), "divided")
    assert subject == "GPU 0"
    assert "other processes used it" in text
    other = NodeRun(run_id="neighbour", start_s=START_S - 5, end_s=START_S + 200)
    report = run_report(other_runs, other_runs=[other], extra=share(3_000.0, 2_400.0))
    ((_, text),) = finding_texts(report, "shared")
    assert text.endswith("also used by neighbour; the run's attributed share is listed as well")
    assert "divided" not in finding_codes(report)


@pytest.mark.parametrize(
    "idle_shared_j",
    [
        6_000.0,
        5_910.0,  # 1.5 %
        5_942.0,  # 0.1 s x 300 W at each edge is 60 J, and 10 J its uncertainty
        6_050.0,
    ],
)
def test_attribution_run_alone_tolerates_difference_at_edges(tmp_path, idle_shared_j):
    report = run_report(tmp_path, extra=share(idle_shared_j, 4_800.0))

    assert report.energies.shares == {}
    assert "divided" not in finding_codes(report)


def test_attribution_short_run_alone_tolerates_sensor_interval(tmp_path):
    run = NodeRun(end_s=START_S + 1, uncertainty_j=5.0)
    gpu = NodeGpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 1, 60)])

    assert (
        run_report(tmp_path, run, gpus=[gpu], extra=share(241.0, 200.0)).energies.shares == {}
    )  # 300 J less 2 x 0.1 s x 300 W


def test_attribution_cpu_share_is_listed_with_node_energy(tmp_path):
    report = run_report(tmp_path, NodeRun(cpu_j=1_000.0), extra=share(400.0, 150.0, CPU))

    assert report.energy["cpu"].value == 1_000
    assert report.energies.shares == {"cpu": {"idle_shared": 400, "idle_apart": 150}}


def test_attribution_all_of_a_gpu_without_a_share_counts(tmp_path):
    gpus = [NodeGpu(POWER_STEPS, index="0"), NodeGpu(POWER_STEPS, index="1")]
    second = {"component": "gpu", "device": "GPU-00000001"}
    first_only, both = tmp_path / "one", tmp_path / "both"
    first_only.mkdir(), both.mkdir()

    report = run_report(first_only, gpus=gpus, extra=share(3_000.0, 2_400.0))
    # 3,000 and 2,400 J of the first GPU, and the 6,000 J of the other one
    assert report.energies.shares == {"gpu": {"idle_shared": 9_000, "idle_apart": 8_400}}
    report = run_report(
        both,
        gpus=gpus,
        extra=lambda t: [*share(3_000.0, 2_400.0)(t), *share(6_000.0, 4_800.0, second)(t)],
    )
    assert report.energies.shares == {"gpu": {"idle_shared": 9_000, "idle_apart": 7_200}}
    assert [device.divided for device in report.devices] == [True, False]


def test_attribution_missing_leaves_share_unknown(tmp_path):
    report = run_report(tmp_path)

    assert report.devices[0].attributed_j == {}
    assert report_document(report)["devices"][0]["attributed_energy_idle_shared_joules"] is None


def test_energy_per_unit_shared_gpu_is_the_attributed_share(tmp_path):
    """Half of the 6,000 J belongs to the run: 1,000 tokens take 3 J each, not 6 J, and a model has
    no 95 % interval.
    """
    report = run_report(
        tmp_path, NodeRun(work={"generated_tokens": 1_000.0}), extra=share(3_000.0, 2_400.0)
    )

    assert report.work[0].energy_per_unit.value == pytest.approx(3.0)
    assert report.work[0].energy_per_unit.low is None
    assert "energy attributed to the run by idle_shared" in terminal_text(report)
    assert report.boundaries[0].work[0].energy_per_unit.value == pytest.approx(3.0)
    assert report.boundaries[0].energy.value == 6_000


def test_boundary_share_of_partly_measured_energy_is_partial(tmp_path):
    """A third of 600 J, of which up to 90 J more were not measured, for 10 steps."""
    report = run_report(tmp_path)
    gpu = replace(
        report.devices[0], energy=Figure(600.0), attributed_j={"idle_shared": 200.0}, shared=True
    )
    whole = Figure(600.0, 3.0, bias=(-30.0, 60.0), rest=(0.0, 90.0), reason="a gap")
    energies = replace(report.energies, devices=(gpu,), by_component={"gpu": whole})

    (boundary,) = energy_boundaries(energies, [Work("steps", 10.0, None, None)], report.times)

    assert boundary.attributed_j == pytest.approx(200.0)
    assert boundary.work[0].energy_per_unit == Figure(
        pytest.approx(20.0),
        bias=pytest.approx((-1.0, 2.0)),
        rest=pytest.approx((0.0, 3.0)),
        reason="a gap",
    )


def test_energy_per_unit_own_gpu_is_of_the_whole_device(tmp_path):
    report = run_report(tmp_path, NodeRun(work={"generated_tokens": 1_000.0}))

    assert report.work[0].energy_per_unit.value == pytest.approx(6.0)
    assert report.work[0].energy_per_unit.half_width == pytest.approx(0.01)  # ± 10 J


def test_run_on_two_gpus_warns_of_the_unused_one(tmp_path):
    gpus = [
        NodeGpu(POWER_STEPS, index=str(index), utilization=ratio)
        for index, ratio in enumerate((0.9, 0.0))
    ]

    ((subject, text),) = finding_texts(run_report(tmp_path, gpus=gpus), "unused_gpu")

    assert subject == "GPU 1"
    assert "its utilization was 0 %, but its energy counts" in text
