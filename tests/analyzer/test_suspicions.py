"""What the exporter saw of a GPU's energy that is not to be trusted becomes a finding."""

import pytest

from analyzer.output.terminal import terminal_report
from exporter.contract import metrics as m
from tests.analyzer.node import START_S, Gpu, Run, every
from tests.analyzer.reported import BOX, codes, report_of

REASONS = ("frozen", "implausible", "disagrees", "aliasing")


def suspect(reason, from_s, until_s, uuid="GPU-00000000"):
    def more(t):
        for one in REASONS:
            held = one == reason and from_s <= t < until_s
            yield m.GPU_ENERGY_SUSPECT, {"gpu": "0", "uuid": uuid, "reason": one}, float(held)

    return more


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
        ("disagrees", "warning", "differed by more than 5 % for two minutes; at least one is inaccurate"),
    ],
)
def test_a_suspicion_in_the_run_is_a_finding_that_says_what_it_means(tmp_path, reason, level, meaning):
    report = report_of(tmp_path, more=suspect(reason, START_S + 8, START_S + 12))

    (finding,) = [finding for finding in report.findings if finding.code == f"suspect_{reason}"]
    assert (finding.level, finding.subject) == (level, "GPU 0")
    assert meaning in finding.text
    assert "(first seen 8 s after the start)" in finding.text or "(first seen 9 s" in finding.text
    assert terminal_report(report)


def test_each_gpu_and_each_reason_has_its_own(tmp_path):
    gpus = [Gpu(BOX, index="0"), Gpu(BOX, index="1")]

    def more(t):
        yield from suspect("frozen", START_S, START_S + 60)(t)
        yield from suspect("frozen", START_S, START_S + 60, uuid="GPU-00000001")(t)
        yield m.GPU_ENERGY_SUSPECT, {"gpu": "1", "uuid": "GPU-00000001", "reason": "new"}, 1.0

    report = report_of(tmp_path, gpus=gpus, more=more)

    found = {(finding.code, finding.subject) for finding in report.findings if finding.code.startswith("suspect_")}
    assert found == {("suspect_frozen", "GPU 0, GPU 1"), ("suspect_new", "GPU 1")}


@pytest.mark.parametrize(("from_s", "until_s"), [(-40, -2), (30, 60)])
def test_a_suspicion_that_was_over_before_the_run_or_came_well_after_it_is_none_of_it(tmp_path, from_s, until_s):
    report = report_of(tmp_path, more=suspect("implausible", START_S + from_s, START_S + until_s))

    assert not [code for code in codes(report) if code.startswith("suspect_")]


def test_the_first_scrape_after_a_short_run_counts_since_a_suspicion_takes_time_to_form(tmp_path):
    run = Run(end_s=START_S + 4)
    times = every(15, START_S - 53, START_S + 60)  # at -8 and +7 s

    report = report_of(tmp_path, run, times=times, more=suspect("implausible", START_S + 2, START_S + 62))

    assert "suspect_implausible" in codes(report)
