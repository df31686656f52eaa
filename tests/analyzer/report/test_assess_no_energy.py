"""Runs without the energy of any device."""

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun
from tests.analyzer.run_reports import (
    finding_codes,
    finding_texts,
    run_frames,
    run_report,
    terminal_text,
)
from wattline.contract.metrics import GPU_INFO
from wattline_analyzer.compare.comparison import RunGroup, compare_groups, group_member
from wattline_analyzer.report.assess import NoEnergyError, assess
from wattline_analyzer.report.document import report_document
from wattline_analyzer.report.html.page import html_page


def run_without_gpus(**facts):
    """A run of 20 s on a node that cannot measure energy: 192 tokens, and a median TTFT of 0.1
    s.
    """
    return NodeRun(work={"generated_tokens": 192.0}, results={"ttft_seconds_p50": 0.1}, **facts)


def test_report_run_without_energy_has_work_and_results(tmp_path):
    frames = run_frames(tmp_path, run_without_gpus(), gpus=[])
    report = assess(frames)

    assert report.headline is None
    assert report.work[0].per_second == pytest.approx(192 / 20)
    assert report.work[0].energy_per_unit is None
    assert "no_energy" in finding_codes(report)
    assert "9.6" in terminal_text(report)
    assert report_document(report)["energy"] == {}
    assert "no energy was measured" in html_page(report, frames, frames.raw, b"")


def test_report_run_without_energy_rate_is_of_the_working_phase(tmp_path):
    """192 tokens in the phase measure of 15 s: 12.8 tokens/s."""
    run = run_without_gpus(
        phases={"measure": (15.0, 0.0)}, phase_work={"measure": {"generated_tokens": 192.0}}
    )

    report = run_report(tmp_path, run, gpus=[])

    assert report.work[0].per_second == pytest.approx(12.8)


@pytest.mark.parametrize(
    ("of_node", "cause"),
    [
        ([], "the exporter found no GPU on this machine"),
        ([(GPU_INFO, {"gpu": "0", "uuid": "GPU-0"}, 1.0)], "none of its processes used a GPU"),
    ],
)
def test_report_run_without_energy_names_the_cause(tmp_path, of_node, cause):
    report = run_report(tmp_path, run_without_gpus(), gpus=[], extra=lambda _: of_node)

    ((_, text),) = finding_texts(report, "no_energy")
    assert text.startswith(f"no energy was measured: {cause}, and CPU energy is not readable; ")


def test_report_active_run_without_energy_is_refused(tmp_path):
    with pytest.raises(NoEnergyError, match="has no energy"):
        run_report(tmp_path, run_without_gpus(end_s=None), gpus=[])


def test_compare_runs_without_energy_by_rate(tmp_path):
    members = []
    for name, end_s in (("a", START_S + 20), ("b", START_S + 40)):
        (tmp_path / name).mkdir()
        frames = run_frames(tmp_path / name, run_without_gpus(run_id=name, end_s=end_s), gpus=[])
        members.append(RunGroup(name, (group_member(frames, assess(frames)),)))

    lines = {line.figure.key: line for line in compare_groups(members).lines}

    assert lines["generated_tokens_per_second"].differences[1].ratio == pytest.approx(0.5)
    assert lines["duration_seconds"].levels[0].value == pytest.approx(20.0)


def test_report_gpu_of_zero_energy_is_still_reported(tmp_path):
    report = run_report(tmp_path, NodeRun(), gpus=[NodeGpu([(START_S - 100, 0.0)])])

    assert report.headline.value == 0
    assert "no_energy" not in finding_codes(report)
