"""Lines of a report's summary, and notes of its tables."""

from dataclasses import replace

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun
from tests.analyzer.run_reports import run_report, terminal_text
from wattline.figures import Figure


def test_report_net_energy_near_zero_has_the_digits_of_its_half_width(tmp_path):
    report = run_report(tmp_path)
    gpu = replace(report.devices[0], net=Figure(-0.04, 1.36))
    energies = replace(report.energies, devices=(gpu,))

    lines = terminal_text(replace(report, energies=energies)).splitlines()

    (summary,) = (line for line in lines if line.startswith("net of idle"))
    assert summary.split("GPU")[1].strip() == "0.0 ± 1.4 J"
    assert sum("0.0 ± 1.4 J" in line for line in lines) == 2


def test_report_leaves_out_accompanying_work_of_zero(tmp_path):
    work = {"generated_tokens": 1_000.0, "padding_tokens": 0.0, "requests_failed": 2.0}

    text = terminal_text(run_report(tmp_path, NodeRun(work=work)))

    assert "1,000 generated tokens" in text
    assert "2 requests failed" in text
    assert "padding" not in text


@pytest.mark.parametrize(
    ("gpu", "others", "reason"),
    [
        (
            NodeGpu([(START_S - 100, 300)], utilization=0.9),
            (),
            "no 10 idle seconds in a row were sampled right before or after the run.",
        ),
        (
            NodeGpu([(START_S - 100, 300)]),
            (NodeRun("other", START_S - 5, START_S + 5),),
            "other runs used it at the same time.",
        ),
    ],
)
def test_report_unknown_idle_power_has_a_reason(tmp_path, gpu, others, reason):
    text = terminal_text(run_report(tmp_path, gpus=[gpu], other_runs=others))

    assert f"Idle power of GPU 0 is unknown: {reason}" in text


def test_report_known_idle_power_has_no_reason(tmp_path):
    assert "Idle power of" not in terminal_text(run_report(tmp_path))
