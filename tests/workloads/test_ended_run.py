"""What the runner says of a run that has ended."""

import pytest

from exporter.contract.run import Phase, Run
from workloads.runner import summary as ended_run


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
    return Run.model_validate(known | energies | times | more | fields)


def measured(**work):
    return Phase(name="measure", started_at=0.0, duration_seconds=1.0, energy_joules={"gpu": 300.0}, work=work)


def lines(**fields):
    return list(ended_run.lines(ended(**fields), "ok", None))


@pytest.mark.parametrize(
    ("unit", "amount", "said"),
    [
        ("steps", 30.0, "10 J of the GPUs per step"),
        ("generated_tokens", 1_200.0, "0.25 J of the GPUs per generated token"),
        ("images", 3.0, "100 J of the GPUs per image"),
        ("flop", 3e14, "1e-12 J of the GPUs per flop"),
    ],
)
def test_energy_is_that_of_one_unit(unit, amount, said):
    phase = measured(**{unit: amount})

    assert said in lines(phases=[phase])


def test_what_is_no_aim_of_the_job_has_no_energy_of_its_own():
    phase = measured(requests_failed=3.0)

    assert not [line for line in lines(phases=[phase]) if "per" in line.split()]


def test_the_outcome_is_the_ledger_s_and_where_another_ended_the_run_that_is_said():
    *_, before, last = lines(outcome="failed")

    assert before == "the command's own end was ok, but something else had ended the run before, as failed"
    assert last.startswith("run r failed in 2.0 s")
    assert len(lines(outcome="ok")) == len(lines(outcome="failed")) - 1
