import os
import time

import pytest

from tests.daemon import begin, end
from tests.exporter.api import UUIDS, assert_problem
from wattline_exporter.simulation import Constant, Fault


def test_end_twice_returns_the_first_outcome(exporter):
    run_id = begin(exporter)["run_id"]
    time.sleep(0.3)
    first = end(
        exporter, run_id, outcome="failed", results={"ttft_seconds_p99": 0.31, "loss": -1.5}
    )

    assert first["outcome"] == "failed"
    assert first["results"] == {"ttft_seconds_p99": 0.31, "loss": -1.5}
    assert end(exporter, run_id, outcome="ok", results={"loss": 2.0}) == first
    assert exporter.get(f"/api/v1/runs/{run_id}") == (200, first)
    assert exporter.value("wattline_run_result", run_id=run_id, name="loss") == -1.5


def test_end_makes_run_reject_further_changes(exporter):
    run_id = begin(exporter)["run_id"]
    end(exporter, run_id)

    for verb, body in (
        ("work", {"tokens": 1}),
        ("phase", {"name": "x"}),
        ("processes", {"pids": [os.getpid()]}),
    ):
        assert_problem(exporter.post(f"/api/v1/runs/{run_id}/{verb}", body), 409, "ended")


@pytest.mark.parametrize(
    "body",
    [
        {"outcome": "fine"},
        {"results": {f"r{i}": 1 for i in range(65)}},
        {"results": {"a b": 1}},
        {"results": {"a": "1"}},
        {"work": {"tokens": -1}},
    ],
)
def test_end_invalid_request_leaves_the_run_open(exporter, body):
    run_id = begin(exporter)["run_id"]
    assert_problem(exporter.post(f"/api/v1/runs/{run_id}/end", body), 422)

    assert exporter.get(f"/api/v1/runs/{run_id}")[1]["state"] == "running"
    end(exporter, run_id, results={f"r{i}": i for i in range(64)})


def test_end_silent_device_is_named_in_notes(start):
    with start() as exporter, exporter.simulation() as simulation:
        run_id = begin(exporter)["run_id"]
        time.sleep(0.5)
        simulation.set_fault(1, Fault.HANG, on=True)
        time.sleep(0.5)
        run = end(exporter, run_id)
        simulation.set_fault(1, Fault.HANG, on=False)

    assert any(UUIDS[1] in note and "missing" in note for note in run["notes"])
    assert not any(UUIDS[0] in note for note in run["notes"])
    truth = 78 * run["duration_seconds"]
    off = abs(run["energy_joules"]["gpu"][UUIDS[1]] - truth)
    assert off <= run["energy_uncertainty_joules"]["gpu"][UUIDS[1]]


def test_end_energy_interval_contains_true_energy(exporter):
    with exporter.simulation() as simulation:
        simulation.set_load(0, Constant(500.0))
        run_id = begin(exporter, gpus=["0"])["run_id"]
        time.sleep(2.0)
        run = end(exporter, run_id)
        simulation.set_load(0, Constant(78.0))
    truth = 500.0 * run["duration_seconds"]
    half_width = run["energy_uncertainty_joules"]["gpu"][UUIDS[0]]

    assert abs(run["energy_joules"]["gpu"][UUIDS[0]] - truth) <= half_width
    assert half_width <= 0.2 * truth
    assert run["covered_ratio"]["gpu"][UUIDS[0]] >= 0.9
    assert exporter.value("wattline_run_power_max_watts", run_id=run_id) == pytest.approx(
        500.0, abs=1.0
    )


def test_run_counters_only_rise(exporter):
    run_id = begin(exporter)["run_id"]
    exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": "p"})
    rows = []

    def counters():
        metrics = exporter.metrics()
        rows.append(
            [
                sum(v for labels, v in metrics.get(name, ()) if labels.get("run_id") == run_id)
                for name in (
                    "wattline_run_energy_joules_total",
                    "wattline_run_phase_energy_joules_total",
                )
            ]
        )

    for _ in range(30):
        counters()
        time.sleep(0.26)
    end(exporter, run_id)
    time.sleep(0.3)
    counters()

    for column in zip(*rows, strict=True):
        assert list(column) == sorted(column)
        assert column[-1] > 0
