"""The run's share of a device that others used as well, beside the whole device and never in its place."""

import io
import json
from html import unescape

import pytest

from analyzer.assess.run import assess
from analyzer.output import documents
from analyzer.output.html.page import html_page
from analyzer.output.terminal import console, terminal_report
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, Gpu, Run
from tests.analyzer.reported import BOX, codes, found, frames_with, report_of

GPU = {"component": "gpu", "device": "GPU-00000000"}
CPU = {"component": "cpu", "device": "0"}


def share(idle_shared_j, idle_apart_j, device=GPU):
    def more(t):
        if t >= START_S:
            own = {"run_id": "train-1", **device}
            yield m.RUN_ATTRIBUTED_ENERGY, {**own, "policy": "idle_shared"}, idle_shared_j
            yield m.RUN_ATTRIBUTED_ENERGY, {**own, "policy": "idle_apart"}, idle_apart_j
            yield m.RUN_ATTRIBUTED_ENERGY, {**own, "run_id": "", "policy": "idle_apart"}, 1e6

    return more


def test_a_shared_gpu_shows_the_whole_and_the_runs_share_by_each_policy(tmp_path):
    frames = frames_with(tmp_path, more=share(3_000.0, 2_400.0))
    report = assess(frames)
    text = unescape(html_page(report, frames, frames.raw, b""))
    target = io.StringIO()
    console(target).print(terminal_report(report))

    assert report.headline.value == 6_000  # 300 W x 20 s
    assert report.shares == {"gpu": {"idle_shared": 3_000, "idle_apart": 2_400}}
    assert "3,000 J by idle_shared" in target.getvalue()
    assert "idle_apart: its share by load of the power above idle" in target.getvalue()
    assert "Energy attributed to the run" in text
    assert ">3,000 J<" in text
    document = json.loads(documents.as_json(documents.report_document(report)))
    assert document["attributed_energy"]["gpu"] == {"idle_shared_joules": 3_000, "idle_apart_joules": 2_400}
    assert document["devices"][0]["attributed_energy_idle_apart_joules"] == 2_400
    assert document["energy"]["gpu"]["energy_joules"] == 6_000


def test_processes_of_no_run_are_a_note_and_other_runs_a_warning_that_points_to_the_share(tmp_path):
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    alone.mkdir(), beside.mkdir()

    ((subject, text),) = found(report_of(alone, more=share(3_000.0, 2_400.0)), "divided")
    assert subject == "GPU 0"
    assert "other processes used it" in text
    other = Run(run_id="neighbour", start_s=START_S - 5, end_s=START_S + 200)
    report = report_of(beside, beside=[other], more=share(3_000.0, 2_400.0))
    ((_, text),) = found(report, "shared")
    assert text.endswith("also used by neighbour; the run's attributed share is listed as well")
    assert "divided" not in codes(report)


@pytest.mark.parametrize(
    "idle_shared_j",
    [
        6_000.0,
        5_910.0,  # 1.5 %
        5_942.0,  # 0.1 s x 300 W at each edge is 60 J, and 10 J its uncertainty
        6_050.0,
    ],
)
def test_a_run_alone_is_not_called_shared_for_what_its_edges_leave(tmp_path, idle_shared_j):
    report = report_of(tmp_path, more=share(idle_shared_j, 4_800.0))

    assert report.shares == {}
    assert "divided" not in codes(report)


def test_a_short_run_alone_may_miss_a_quantum_of_the_sensor_at_each_edge(tmp_path):
    run = Run(end_s=START_S + 1, uncertainty_j=5.0)
    gpu = Gpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 1, 60)])

    assert report_of(tmp_path, run, gpus=[gpu], more=share(241.0, 200.0)).shares == {}  # 300 J less 2 x 0.1 s x 300 W


def test_the_share_of_the_cpu_stands_beside_the_whole_node(tmp_path):
    report = report_of(tmp_path, Run(cpu_j=1_000.0), more=share(400.0, 150.0, CPU))

    assert report.energy["cpu"].value == 1_000
    assert report.shares == {"cpu": {"idle_shared": 400, "idle_apart": 150}}


def test_of_several_gpus_the_shares_add_up_where_each_has_one(tmp_path):
    gpus = [Gpu(BOX, index="0"), Gpu(BOX, index="1")]
    second = {"component": "gpu", "device": "GPU-00000001"}
    one, both = tmp_path / "one", tmp_path / "both"
    one.mkdir(), both.mkdir()

    assert report_of(one, gpus=gpus, more=share(3_000.0, 2_400.0)).shares == {}  # of the other nothing is known
    report = report_of(
        both, gpus=gpus, more=lambda t: [*share(3_000.0, 2_400.0)(t), *share(6_000.0, 4_800.0, second)(t)]
    )
    assert report.shares == {"gpu": {"idle_shared": 9_000, "idle_apart": 7_200}}
    assert [device.divided for device in report.devices] == [True, False]


def test_an_exporter_that_does_not_attribute_leaves_the_share_unknown(tmp_path):
    report = report_of(tmp_path)

    assert report.devices[0].attributed_j == {}
    assert documents.report_document(report)["devices"][0]["attributed_energy_idle_shared_joules"] is None
