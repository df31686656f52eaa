"""Summary of an ended run."""

import pytest

from exporter.contract.run import PhaseView, RunView
from workloads.runner import run_folder as ended_run


def ended(**fields):
    energies = {
        "energy_joules": {},
        "energy_uncertainty_joules": {},
        "integrated_energy_joules": {},
        "covered_ratio": {},
    }
    times = {"started_at": 0.0, "ended_at": 2.0, "duration_seconds": 2.0, "phases": []}
    known = {"run_id": "r", "workload": "w", "labels": {}, "gpus": [], "state": "ended", "outcome": "ok"}
    more = {"work": {}, "results": {}, "emissions_grams": [], "notes": []}
    return RunView.model_validate(known | energies | times | more | fields)


def measured(**work):
    return PhaseView(name="measure", started_at=0.0, duration_seconds=1.0, energy_joules={"gpu": 300.0}, work=work)


def lines(**fields):
    return list(ended_run.summary_lines(ended(**fields), "ok", None))


@pytest.mark.parametrize(
    ("unit", "amount", "line"),
    [
        ("steps", 30.0, "10 J of the GPUs per step during the phase measure"),
        ("generated_tokens", 1_200.0, "0.25 J of the GPUs per generated token during the phase measure"),
        ("images", 3.0, "100 J of the GPUs per image during the phase measure"),
        ("flop", 3e14, "1e-12 J of the GPUs per flop during the phase measure"),
    ],
)
def test_summary_lines_have_energy_per_unit(unit, amount, line):
    phase = measured(**{unit: amount})

    assert line in lines(phases=[phase], work=phase.work, energy_joules={"gpu": {"GPU-0": 500.0}})


def test_summary_lines_omit_energy_per_secondary_unit():
    phase = measured(requests_failed=3.0)
    shown = lines(phases=[phase], work=phase.work, energy_joules={"gpu": {"GPU-0": 500.0}})

    assert not [line for line in shown if "per" in line.split()]


def test_summary_lines_report_outcome_of_exporter():
    *_, before, last = lines(outcome="failed")

    assert before == "the command ended as ok, but the run had already been ended as failed"
    assert last.startswith("run r failed in 2.0 s")
    assert len(lines(outcome="ok")) == len(lines(outcome="failed")) - 1
