import time

import pytest

from tests.daemon import begin, end
from tests.exporter.api import UUIDS, assert_problem
from tests.polling import eventually
from wattline_exporter.simulation import Constant


def test_work_is_the_sum_of_contributors_and_never_falls(exporter):
    run_id = begin(exporter)["run_id"]
    path = f"/api/v1/runs/{run_id}/work"
    exporter.post(path, {"contributor": "rank-0", "generated_tokens": 100, "requests": 1})
    exporter.post(path, {"contributor": "rank-1", "generated_tokens": 50.5})
    exporter.post(path, {"contributor": "rank-0", "generated_tokens": 110})
    assert_problem(
        exporter.post(path, {"contributor": "rank-0", "generated_tokens": 90}),
        422,
        "generated_tokens",
        "totals",
    )
    run = end(exporter, run_id, work={"steps": 7})

    assert run["work"] == {"generated_tokens": 160.5, "requests": 1.0, "steps": 7.0}
    assert (
        exporter.value("wattline_run_work_total", run_id=run_id, unit="generated_tokens") == 160.5
    )


@pytest.mark.parametrize(
    "body",
    [
        {"tokens": -1},
        {"tokens": "1"},
        {"to kens": 1},
        {"tokens": None},
        {"contributor": 3},
        {"tokens": [1]},
    ],
)
def test_work_invalid_amount_is_rejected(exporter, body):
    run_id = begin(exporter)["run_id"]
    assert_problem(exporter.post(f"/api/v1/runs/{run_id}/work", body), 422)
    assert end(exporter, run_id)["work"] == {}


@pytest.mark.parametrize(
    ("reports", "unit"),
    [
        (({"samples": 0}, {"steps": 5, "samples": 64}), "samples"),  # declared
        (({"flop": 0}, {"generated_tokens": 5, "flop": 9}), "flop"),
        (({"verdicts": 1, "generated_tokens": 5}, {"steps": 3}), "verdicts"),  # the first
        (({"padding_tokens": 1, "flop": 5}, {"chapters": 3}), "chapters"),  # never an auxiliary one
    ],
)
def test_work_unit_is_the_declared_or_first_one(exporter, reports, unit):
    run_id = begin(exporter)["run_id"]
    for number, report in enumerate(reports):
        answer = exporter.post(
            f"/api/v1/runs/{run_id}/work", {"contributor": f"rank-{number}", **report}
        )[1]
        assert 0 not in answer["work"].values()  # a declaration is no work
    run = end(exporter, run_id)

    assert run["work_unit"] == unit
    assert run["energy_per_unit"][0]["unit"] == unit
    assert exporter.value("wattline_run_work_unit_info", run_id=run_id, unit=unit) == 1


def test_work_empty_body_renews_the_lease(exporter):
    run_id = begin(exporter, lease_seconds=2.0)["run_id"]
    for _ in range(4):
        time.sleep(1.0)
        assert exporter.post(f"/api/v1/runs/{run_id}/work")[0] == 200
    renewed_at = time.time()
    eventually(
        lambda: exporter.get(f"/api/v1/runs/{run_id}")[1]["state"] == "ended", "the run ends"
    )
    run = exporter.get(f"/api/v1/runs/{run_id}")[1]

    assert run["outcome"] == "interrupted"
    assert run["ended_at"] == pytest.approx(renewed_at + 2.0, abs=0.5)
    assert any("lease" in note for note in run["notes"])
    assert run["energy_joules"]["gpu"][UUIDS[0]] == pytest.approx(
        78.0 * run["duration_seconds"], abs=2.0
    )


def test_work_is_assigned_to_the_phase_of_its_report(exporter):
    run_id = begin(exporter)["run_id"]
    work, phase = (f"/api/v1/runs/{run_id}/{name}" for name in ("work", "phase"))
    exporter.post(work, {"contributor": "a", "steps": 1})  # outside of phases
    exporter.post(phase, {"name": "train"})
    exporter.post(work, {"contributor": "a", "steps": 5})
    exporter.post(work, {"contributor": "b", "steps": 2, "images": 64})
    exporter.post(phase, {"name": "validate"})
    exporter.post(work, {"contributor": "a", "steps": 6})
    run = end(exporter, run_id, work={"images": 8})  # sum over all phases

    assert {shown["name"]: shown["work"] for shown in run["phases"]} == {
        "train": {"steps": 6.0, "images": 64.0},
        "validate": {"steps": 1.0},
    }
    assert run["work"] == {"steps": 8.0, "images": 72.0}
    assert (
        exporter.value("wattline_run_phase_work_total", run_id=run_id, phase="train", unit="steps")
        == 6.0
    )


def test_phase_17th_name_is_rejected(exporter):
    run_id = begin(exporter)["run_id"]
    for i in range(16):
        assert exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": f"p{i}"})[0] == 200
    assert_problem(
        exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": "p16"}), 422, "name", "16", "p0"
    )
    assert exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": "p0"})[0] == 200
    run = end(exporter, run_id)

    assert sorted(phase["name"] for phase in run["phases"]) == sorted(f"p{i}" for i in range(16))


def test_phase_17th_name_ends_the_16th_and_is_noted(exporter):
    run_id = begin(exporter)["run_id"]
    path = f"/api/v1/runs/{run_id}"
    for i in range(16):
        exporter.post(f"{path}/phase", {"name": f"p{i}"})
    exporter.post(f"{path}/work", {"contributor": "a", "steps": 1})
    exporter.post(f"{path}/phase", {"name": "p16"})
    exporter.post(f"{path}/work", {"contributor": "a", "steps": 11})
    run = end(exporter, run_id)

    assert {phase["name"]: phase["work"] for phase in run["phases"]}["p15"] == {"steps": 1.0}
    assert run["work"] == {"steps": 11.0}
    assert any("more than 16 phases" in note for note in run["notes"])


def test_phases_and_emissions_add_up_to_the_runs_energy(exporter):
    with exporter.simulation() as simulation:
        run_id = begin(exporter, gpus=["0"])["run_id"]
        exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": "warm-up"})
        time.sleep(0.7)
        simulation.set_load(0, Constant(600.0))
        exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": "measure"})
        time.sleep(1.1)
        exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": "warm-up"})
        time.sleep(0.3)
        run = end(exporter, run_id)
        simulation.set_load(0, Constant(78.0))
    joules = run["energy_joules"]["gpu"][UUIDS[0]]
    phases = {phase["name"]: phase for phase in run["phases"]}
    before_s = run["duration_seconds"] - sum(phase["duration_seconds"] for phase in phases.values())

    (grams,) = run["emissions_grams"]
    assert grams["grams"] == pytest.approx(joules / 3.6e6 * 230, rel=1e-9)
    assert (grams["component"], grams["basis"], grams["quality"]) == ("gpu", "average", "static")
    phased_j = sum(phase["energy_joules"]["gpu"] for phase in phases.values())
    assert joules - phased_j == pytest.approx(
        78 * before_s, abs=1.0
    )  # between the start and the first phase
    assert phases["measure"]["energy_joules"]["gpu"] == pytest.approx(
        600 * phases["measure"]["duration_seconds"], rel=0.05
    )
    assert exporter.value("wattline_run_emissions_grams_total", run_id=run_id) == grams["grams"]
