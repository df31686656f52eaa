"""Findings about suspect energy of a GPU."""

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape_times
from tests.analyzer.run_reports import POWER_STEPS, finding_codes, run_report
from wattline.contract import metrics as m
from wattline_analyzer.report.terminal import terminal_report

REASONS = ("frozen", "implausible", "disagrees", "aliasing", "stuck")


def suspect(reason, from_s, until_s, uuid="GPU-00000000"):
    def extra(t):
        for label in REASONS:
            active = label == reason and from_s <= t < until_s
            yield m.GPU_ENERGY_SUSPECT, {"gpu": "0", "uuid": uuid, "reason": label}, float(active)

    return extra


@pytest.mark.parametrize(
    ("reason", "level", "meaning"),
    [
        (
            "frozen",
            "bad",
            "did not change while power was drawn, so that its energy is too low: do not use it",
        ),
        ("implausible", "warning", "integrated power replaces the jump"),
        ("aliasing", "warning", "error up to 80 % with a load of similar period"),
        ("stuck", "bad", "did not change for 5 s or more while work ran"),
        (
            "disagrees",
            "warning",
            "differed by more than 5 % for two minutes; at least one is inaccurate",
        ),
    ],
)
def test_suspect_energy_in_run_is_finding_with_its_effect(tmp_path, reason, level, meaning):
    report = run_report(tmp_path, extra=suspect(reason, START_S + 8, START_S + 12))

    (finding,) = [finding for finding in report.findings if finding.code == f"suspect_{reason}"]
    assert (finding.level, finding.subject) == (level, "GPU 0")
    assert meaning in finding.text
    assert "(first seen 8 s after the start)" in finding.text or "(first seen 9 s" in finding.text
    assert terminal_report(report)


def test_suspect_energy_findings_are_grouped_by_reason(tmp_path):
    gpus = [NodeGpu(POWER_STEPS, index="0"), NodeGpu(POWER_STEPS, index="1")]

    def extra(t):
        yield from suspect("frozen", START_S, START_S + 60)(t)
        yield from suspect("frozen", START_S, START_S + 60, uuid="GPU-00000001")(t)
        yield m.GPU_ENERGY_SUSPECT, {"gpu": "1", "uuid": "GPU-00000001", "reason": "new"}, 1.0

    report = run_report(tmp_path, gpus=gpus, extra=extra)

    result = {
        (finding.code, finding.subject)
        for finding in report.findings
        if finding.code.startswith("suspect_")
    }
    assert result == {("suspect_frozen", "GPU 0, GPU 1"), ("suspect_new", "GPU 1")}


@pytest.mark.parametrize(("from_s", "until_s"), [(-40, -2), (30, 60)])
def test_suspect_energy_outside_run_is_ignored(tmp_path, from_s, until_s):
    report = run_report(tmp_path, extra=suspect("implausible", START_S + from_s, START_S + until_s))

    assert not [code for code in finding_codes(report) if code.startswith("suspect_")]


def test_suspect_energy_at_first_scrape_after_short_run_is_reported(tmp_path):
    run = NodeRun(end_s=START_S + 4)
    times = scrape_times(15, START_S - 53, START_S + 60)  # at -8 and +7 s

    report = run_report(
        tmp_path, run, times=times, extra=suspect("implausible", START_S + 2, START_S + 62)
    )

    assert "suspect_implausible" in finding_codes(report)
