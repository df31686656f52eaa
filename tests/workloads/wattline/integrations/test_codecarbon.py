"""Trackers with the interface of CodeCarbon: a real exporter, a simulated GPU and 250 g CO2eq per
kWh.
"""

import asyncio
import csv
import math
import os
import subprocess
import sys

import pytest

from tests.daemon import daemon
from tests.polling import eventually
from wattline.contract.run import Emissions, Run, RunDevice
from wattline.figures import Figure, unknown
from wattline.integrations.codecarbon import EmissionsTracker, TaskEmissionsTracker, track_emissions
from wattline.integrations.codecarbon.tracker import Consumption, consumption

SCRIPT = """
import sys
import time

from codecarbon import EmissionsTracker, OfflineEmissionsTracker, track_emissions

tracker = EmissionsTracker(project_name="mnist", measure_power_secs=1, save_to_api=False, gpu_ids=[0])
tracker.start()
try:
    time.sleep(1.5)
finally:
    emissions = tracker.stop()
print(f"{emissions:.9f} kg")
print(f"{tracker.final_emissions_data.energy_consumed:.9f} kWh")


@track_emissions(project_name="decorated", country_iso_code="FRA", offline=True)
def train(seconds):
    time.sleep(seconds)
    return sys.argv[1]


print(train(0.5))
"""
"""A script as the documentation of CodeCarbon shows it; it has no word of Wattline."""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    options = ("--simulate", "1xH200", "--no-history", "--carbon.intensity", "250")
    with daemon(tmp_path_factory.mktemp("node"), *options) as started:
        yield started


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_unchanged_script_has_the_joules_and_grams_of_the_exporter(job, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "wattline.integrations.codecarbon", "train.py", "argument"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ
    )

    first, second = rows(tmp_path / "emissions.csv")
    assert (first["project_name"], second["project_name"]) == ("mnist", "decorated")
    kilograms, kwh, argument = done.stdout.splitlines()
    assert argument == "argument"
    _, run = job.get(f"/api/v1/runs/{first['run_id']}")
    joules = sum(run["energy_joules"]["gpu"].values())
    assert joules == pytest.approx(float(first["energy_consumed"]) * 3.6e6)
    assert float(first["gpu_energy"]) == pytest.approx(joules / 3.6e6)
    no_sensor = ("cpu_energy", "cpu_power", "ram_energy", "ram_power")
    assert [first[column] for column in no_sensor] == ["", "", "", ""]
    assert kwh == f"{joules / 3.6e6:.9f} kWh"
    assert kilograms == f"{joules / 3.6e6 * 0.25:.9f} kg"
    assert float(first["duration"]) == pytest.approx(run["duration_seconds"])


def test_tasks_are_runs_of_their_own_and_have_a_file(job, tmp_path):
    tracker = EmissionsTracker(project_name="tasks", output_dir=str(tmp_path))
    for name in ("load", "train"):
        tracker.start_task(name)
        data = tracker.stop_task()
        assert data.energy_consumed > 0
    tracker.stop()

    (total,) = rows(tmp_path / "emissions.csv")
    tasks = rows(tmp_path / f"emissions_tasks_{total['run_id']}.csv")
    assert [task["task_name"] for task in tasks] == ["load", "train"]
    assert sum(float(task["energy_consumed"]) for task in tasks) < float(total["energy_consumed"])


def test_flush_writes_the_values_so_far_and_update_replaces_them(job, tmp_path, capfd):
    tracker = EmissionsTracker(output_dir=str(tmp_path), on_csv_write="update", gpu_ids="0")
    tracker.start()

    def flushed():
        """Return the emissions and the row once the run has energy; right after its start neither
        is known.
        """
        flushed_kg = tracker.flush()
        (row,) = rows(tmp_path / "emissions.csv")
        return (flushed_kg, row) if float(row["energy_consumed"]) > 0 else None

    flushed_kg, before = eventually(flushed, "energy of the run")
    assert flushed_kg == pytest.approx(float(before["energy_consumed"]) * 0.25), (
        "of the same instant"
    )
    assert "no carbon intensity" not in capfd.readouterr().err
    tracker.stop()
    (after,) = rows(tmp_path / "emissions.csv")
    assert before["run_id"] == after["run_id"]
    assert float(after["duration"]) > float(before["duration"])
    assert float(after["emissions"]) == pytest.approx(float(after["energy_consumed"]) * 0.25)


def test_tracker_of_an_async_function_measures_until_it_returns(job, tmp_path):
    running = []

    @track_emissions(output_dir=str(tmp_path))
    async def train():
        await asyncio.sleep(0)
        running.extend(run["run_id"] for run in job.get("/api/v1/runs?state=running")[1])

    asyncio.run(train())
    (row,) = rows(tmp_path / "emissions.csv")
    assert row["run_id"] in running


@pytest.mark.parametrize("tracker", [EmissionsTracker, TaskEmissionsTracker])
def test_tracker_with_an_exception_has_the_outcome_failed(job, tmp_path, monkeypatch, tracker):
    monkeypatch.setenv("CODECARBON_OUTPUT_DIR", str(tmp_path))
    before = {run["run_id"] for run in job.get("/api/v1/runs")[1]}
    with pytest.raises(ZeroDivisionError), tracker("failing"):
        1 / 0  # noqa: B018
    outcomes = {
        run["workload"]: run["outcome"]
        for run in job.get("/api/v1/runs")[1]
        if run["run_id"] not in before
    }
    expected = (
        {"codecarbon": "failed"}
        if tracker is EmissionsTracker
        else {"codecarbon": "ok", "codecarbon-task": "failed"}
    )
    assert outcomes == expected


def view(energies, grams=None):
    """Return a run with energies by component, and emissions of each where `grams` is given."""
    devices = tuple(RunDevice(name, "0", energy) for name, energy in energies.items())
    emissions = (
        [] if grams is None else [Emissions(n, "average", "actual", grams) for n in energies]
    )
    return Run(
        run_id="r",
        workload="w",
        state="running",
        started_at=0.0,
        duration_s=1.0,
        devices=devices,
        emissions=tuple(emissions),
    )


def test_consumption_is_the_difference_of_two_views():
    """GPU 600 - 400 J, CPU 50 - 30 J; 2 x 3 g - 2 x 1 g."""
    now = view({"gpu": Figure(600.0, 1.0), "cpu": Figure(50.0, 1.0)}, 3.0)
    before = view({"gpu": Figure(400.0, 1.0), "cpu": Figure(30.0, 1.0)}, 1.0)

    assert consumption(now, before) == Consumption({"gpu": 200.0, "cpu": 20.0}, 4.0)
    assert consumption(now, before).total_j == 220.0
    assert consumption(now, view({})) == Consumption({"gpu": 600.0, "cpu": 50.0}, 6.0)


def test_consumption_without_intensity_has_energy_and_unknown_emissions():
    found = consumption(view({"gpu": Figure(600.0)}), None)

    assert found.joules == {"gpu": 600.0}
    assert math.isnan(found.grams)


@pytest.mark.parametrize(
    "energy", [unknown("lost"), Figure(50.0, rest=(0.0, math.inf), reason="lost")]
)
def test_consumption_with_unknown_part_has_no_total_and_no_emissions(energy):
    now = view({"gpu": Figure(600.0), "cpu": energy}, 3.0)

    later = view({"gpu": Figure(700.0), "cpu": Figure(60.0)}, 4.0)

    for found in (consumption(now, None), consumption(later, now)):
        assert math.isnan(found.joules["cpu"])
        assert math.isnan(found.total_j)
        assert math.isnan(found.grams)


def test_consumption_without_run_is_unknown():
    found = consumption(None, None)

    assert found.joules == {}
    assert math.isnan(found.total_j)
    assert math.isnan(found.grams)


def test_intensity_and_pue_of_the_arguments_are_used(job, tmp_path):
    with EmissionsTracker(
        save_to_file=False, force_carbon_intensity_g_co2e_kwh=100, pue=1.5
    ) as tracker:
        pass
    data = tracker.final_emissions_data
    _, run = job.get(f"/api/v1/runs/{data.run_id}")
    run_j = sum(run["energy_joules"]["gpu"].values())
    assert data.gpu_energy == pytest.approx(1.5 * run_j / 3.6e6), (
        "CodeCarbon applies it to each component"
    )
    assert data.energy_consumed == pytest.approx(data.gpu_energy)
    assert tracker.final_emissions == pytest.approx(data.energy_consumed * 0.1)


def test_tracker_in_another_run_counts_only_its_own_time(job, tmp_path, monkeypatch):
    job.post("/api/v1/runs", {"workload": "outer", "run_id": "outer"})
    monkeypatch.setenv("WATTLINE_RUN_ID", "outer")
    with EmissionsTracker(save_to_file=False) as tracker:
        pass
    _, run = job.get("/api/v1/runs/outer")
    assert run["state"] == "running"
    assert 0 <= tracker.final_emissions_data.duration < run["duration_seconds"]


def test_file_with_other_columns_is_kept_beside_the_new_one(job, tmp_path):
    (tmp_path / "emissions.csv").write_text("timestamp,energy\n2020,1\n")
    with EmissionsTracker(output_dir=str(tmp_path)):
        pass
    assert (tmp_path / "emissions.csv.bak").read_text() == "timestamp,energy\n2020,1\n"
    assert len(rows(tmp_path / "emissions.csv")) == 1


def test_tracker_without_exporter_has_unknown_values_and_continues(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "wattline.integrations.codecarbon", "train.py", "argument"]
    environment = {**os.environ, "WATTLINE_EXPORTER": "http://127.0.0.1:9"}
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, env=environment
    )

    assert done.stdout.splitlines() == ["nan kg", "nan kWh", "argument"]
    assert "no energy was measured, so the values are NaN; start an exporter" in done.stderr
    assert [row["emissions"] for row in rows(tmp_path / "emissions.csv")] == ["", ""]


def test_folder_that_is_missing_is_one_line_and_no_error(job, tmp_path, capfd):
    @track_emissions(output_dir=str(tmp_path / "missing"))
    def train():
        return 7

    assert train() == 7
    assert (
        f"cannot write emissions to {tmp_path / 'missing'}: No such file or directory"
        in capfd.readouterr().err
    )


def test_unknown_arguments_are_named(job, capfd):
    tracker = EmissionsTracker(save_to_api=True, measure_power_secs=5, save_to_file=False)
    assert "no effect of save_to_api; only emissions.csv is written" in capfd.readouterr().err
    assert tracker.stop() is None
    with TaskEmissionsTracker("task", tracker) as task:
        assert task.tracker is tracker
    assert not math.isnan(tracker.stop())
