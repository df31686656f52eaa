"""pytest plugin in real test sessions: an exporter with a simulated GPU at its idle power of 78
W.
"""

import os
import re
import subprocess
import sys

import pytest

from wattline.client.summary import RunResult
from wattline.figures import Figure
from wattline.integrations.pytest_plugin import Budget

HEAD = "import time\nimport pytest\n\n"


@pytest.fixture
def session(job, tmp_path):
    """Return a function that runs tests from text."""

    def run(text, *options, exporter=job.url):
        (tmp_path / "test_budget.py").write_text(HEAD + text)
        environment = {**os.environ, "WATTLINE_EXPORTER": exporter}
        plugin = ("-p", "no:randomly", "-p", "no:cacheprovider")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            *plugin,
            *options,
            "-c",
            os.devnull,
            "test_budget.py",
        ]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def budget(arguments, body="time.sleep(1)", fixture=""):
    return f"@pytest.mark.energy_budget({arguments})\ndef test_work({fixture}):\n    {body}\n"


def test_budget_that_is_kept_passes_with_a_summary(session):
    done = session(budget("joules=500, gpus='all'"))
    assert done.returncode == 0, done.stdout
    assert "energy budgets" in done.stdout
    assert "test_budget.py::test_work: " in done.stdout
    energy = re.search(r"test_work: [\d,]+(\.\d+)? ± \d+(\.\d+)? J$", done.stdout, re.MULTILINE)
    assert energy, done.stdout
    assert len(energy[1] or "") == len(energy[2] or ""), "as many decimals as the half-width"


def test_budget_that_is_exceeded_fails_with_both_figures(session):
    done = session(budget("joules=20, gpus='all'"))
    assert done.returncode == 1
    assert "energy budget of test_budget.py::test_work: " in done.stdout
    assert ", more than the budget of 20 J" in done.stdout


@pytest.mark.parametrize(
    ("half_j", "each_half_j", "text", "problems"),
    [
        (
            400.0,
            0.15,
            "1,200,500 ± 400 J, 600 ± 150 mJ per sample",
            ["1,200,500 ± 400 J, more than the budget of 1,200,000 J"],
        ),
        (
            600.0,
            0.08,
            "1,200,500 ± 600 J, 600 ± 80 mJ per sample",
            ["600 ± 80 mJ per sample, more than the budget of 500 mJ"],
        ),
    ],
)
def test_budget_is_exceeded_by_the_lower_end_of_the_interval(half_j, each_half_j, text, problems):
    """1,200,100 J is above the budget, 1,199,900 J is not; so are 520 mJ, but not 450 mJ."""
    budget = Budget(joules=1.2e6, joules_per_unit={"samples": 0.5})
    budget.check(
        RunResult(
            "r",
            energy_joules=1_200_500.0,
            uncertainty_joules=half_j,
            per_unit_j={"samples": Figure(0.6, each_half_j)},
            unit_names={"samples": "sample"},
        )
    )
    assert (budget.is_measured, budget.used, budget.problems) == (True, text, problems)


def test_budget_with_unknown_uncertainty_is_not_compared():
    budget = Budget(joules=1.0)
    budget.check(RunResult("r", energy_joules=300.0))
    assert budget.used == ("300.0 J, whose uncertainty is unknown: not compared with the budget")
    assert (budget.is_measured, budget.problems) == (False, [])


def test_budget_per_unit_with_unknown_uncertainty_is_not_compared():
    """As the attributed share of a shared GPU."""
    budget = Budget(joules=500.0, joules_per_unit={"samples": 0.5})
    result = RunResult(
        "r", energy_joules=300.0, uncertainty_joules=3.0, per_unit_j={"samples": Figure(2.0)}
    )
    budget.check(result)

    assert budget.used == (
        "300 ± 3 J, 2.000 J per samples, whose uncertainty is unknown: not compared with the budget"
    )
    assert (budget.is_measured, budget.problems) == (False, [])


def test_budget_per_unit_uses_the_reported_work(session):
    body = "energy_run.work(samples=100); time.sleep(1)"
    done = session(budget("joules_per_unit={'samples': 0.1}, gpus='all'", body, "energy_run"))
    assert done.returncode == 1  # 78 J or more for 100 samples
    assert "J per sample, more than the budget of 100 mJ" in done.stdout
    done = session(budget("joules_per_unit={'samples': 5}, gpus='all'", body, "energy_run"))
    assert done.returncode == 0, done.stdout


def test_budget_per_unit_without_work_fails(session):
    done = session(budget("joules_per_unit={'samples': 1}, gpus='all'"))
    assert done.returncode == 1
    assert "no work in 'samples': report it with energy_run.work(samples=…)" in done.stdout


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--energy-strict",), 1)])
def test_budget_without_an_exporter_is_declared_and_fails_if_strict(session, options, code):
    done = session(budget("joules=500"), *options, exporter="http://127.0.0.1:9")
    assert done.returncode == code
    assert "test_work: not measured: no exporter" in done.stdout


def test_budget_without_a_limit_is_refused(session):
    done = session(budget(""))
    assert done.returncode == 1
    assert "energy_budget: no valid limit; give joules=500" in done.stdout


def test_failing_test_keeps_its_own_error(session):
    done = session(budget("joules=1, gpus='all'", "time.sleep(0.5); assert 1 == 2"))
    assert done.returncode == 1
    assert "assert 1 == 2" in done.stdout


@pytest.mark.parametrize(
    ("decorator", "body", "outcome"),
    [
        ("", "assert False", "failed"),
        ("@pytest.mark.xfail\n", "assert False", "failed"),
        ("", "pytest.skip()", "ok"),
    ],
)
def test_outcome_of_the_run_is_that_of_the_test(session, job, decorator, body, outcome):
    before = {run["run_id"] for run in job.get("/api/v1/runs")[1]}
    session(decorator + budget("joules=500, gpus='all'", body))

    (run,) = [run for run in job.get("/api/v1/runs")[1] if run["run_id"] not in before]
    assert (run["workload"], run["outcome"]) == ("pytest", outcome)
