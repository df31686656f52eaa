"""Import of a run folder with the exporter's response: its report equals that of the exporter's
history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
import yaml

from tests.analyzer.importers.sample_files import BEGIN_S, imported_run_report, single_report
from tests.analyzer.node import series_of_scrapes, write_history
from wattline.contract import metrics as m
from wattline.contract.api import RunGpu
from wattline.contract.run import Emissions, PhaseView, RunView
from wattline_analyzer.report.document import report_document
from wattline_exporter.web.series import run_readings

UUID = "GPU-1f5b0f3e-0000-4000-8000-000000000001"
VIEW = RunView(
    run_id="ours-1",
    workload="llm",
    labels={"model": "tiny", "user": "u1"},
    gpus=[RunGpu(gpu="3", uuid=UUID, name="SIMULATED NVIDIA H200", architecture="Hopper")],
    state="ended",
    outcome="ok",
    started_at=BEGIN_S,
    ended_at=BEGIN_S + 30,
    duration_seconds=30.0,
    phases=[
        PhaseView(
            name="warmup",
            started_at=BEGIN_S,
            last_started_at=BEGIN_S,
            duration_seconds=10.0,
            energy_joules={"gpu": 500.0},
        ),
        PhaseView(
            name="measure",
            started_at=BEGIN_S + 10,
            last_started_at=BEGIN_S + 10,
            duration_seconds=20.0,
            energy_joules={"gpu": 6_000.0},
            energy_uncertainty_joules={"gpu": 30.0},
            work={"requests": 10.0, "generated_tokens": 1_000.0},
        ),
    ],
    work={"requests": 10.0, "generated_tokens": 1_000.0},
    work_unit="requests",
    results={"ttft_seconds_mean": 0.1},
    energy_joules={"gpu": {UUID: 6_500.0}},
    energy_uncertainty_joules={"gpu": {UUID: 12.0}},
    integrated_energy_joules={UUID: 6_490.0},
    emissions_grams=[Emissions(component="gpu", basis="average", quality="static", grams=0.4)],
    covered_ratio={"gpu": {UUID: 0.98}},
    notes=[],
)


def write_folder(folder, view=VIEW):
    """Write the files as the runner does."""
    folder.mkdir()
    start = {
        "event": "start",
        "t": BEGIN_S,
        "run_id": view.run_id,
        "workload": view.workload,
        "gpus": [UUID],
    }
    events = [
        start | {"labels": {"model": "tiny"}, "command": ["x"], "config": {}},
        {"event": "phase", "t": BEGIN_S, "name": "warmup"},
        {"event": "phase", "t": BEGIN_S + 10, "name": "measure"},
        {"event": "end", "t": BEGIN_S + 30.2, "outcome": "ok", "exit_code": 0, "work": view.work}
        | {"duration_seconds": 30.0, "results": view.results},
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    response = view.model_dump(mode="json", exclude={"state"}, exclude_none=True)
    (folder / "metrics.yml").write_text(
        yaml.safe_dump({"exit_code": 0, **response}, sort_keys=False)
    )
    return folder


@pytest.fixture
def report(imported, tmp_path):
    return single_report(imported(write_folder(tmp_path / "run")))


def test_run_folder_gpu_is_simulated_and_named(report):
    (device,) = report.devices

    assert report.simulated
    assert (device.label, device.name, device.architecture) == (
        "GPU 3",
        "SIMULATED NVIDIA H200",
        "Hopper",
    )
    assert device.energy.systematic is None
    assert device.integral_j == 6_490


def test_run_folder_phases_have_the_exporters_energy(report):
    assert {phase.name: phase.energy["gpu"].value for phase in report.phases} == {
        "warmup": 500,
        "measure": 6_000,
    }
    assert {phase.name: phase.duration_s for phase in report.phases} == {
        "warmup": 10,
        "measure": 20,
    }
    assert (
        next(phase.energy["gpu"].half for phase in report.phases if phase.name == "measure") == 30
    )


def test_run_folder_keeps_primary_unit_and_energy_per_unit(report):
    """6,000 J in the phase of the work: 600 J per request, 6 J per token."""
    assert [work.unit for work in report.work] == ["requests", "generated_tokens"]
    assert [work.energy_per_unit.value for work in report.work] == [
        pytest.approx(600),
        pytest.approx(6),
    ]


def test_run_folder_keeps_user_and_emissions(report):
    assert (report.labels["user"], report.labels["model"]) == ("u1", "tiny")
    assert [(one.basis, one.quality, one.mass_g.value) for one in report.emissions] == [
        ("average", "static", 0.4)
    ]


def test_run_folder_counter_counts_the_whole_run(report):
    """The ratio of the run that was read does not change the mean power: 6,500 J in 30 s."""
    assert report.mean_power_w.value == pytest.approx(6_500 / 30)
    assert report.results == {"ttft_seconds_mean": 0.1}


def test_run_folder_shared_gpu_keeps_the_attributed_energy(imported, tmp_path):
    view = VIEW.model_copy(update={"attributed_energy_joules": {"gpu": {UUID: 3_250.0}}})

    report = single_report(imported(write_folder(tmp_path / "run", view)))

    assert [work.energy_per_unit.value for work in report.work] == [
        pytest.approx(325),
        pytest.approx(3.25),
    ]


def test_run_folder_with_invalid_response_is_refused(call, tmp_path):
    folder = write_folder(tmp_path / "run")
    metrics = folder / "metrics.yml"
    metrics.write_text(metrics.read_text().replace("quality: static", "quality: [static]"))

    code, _, stderr = call("import", folder, "--out", tmp_path / "h.sqlite")

    assert code == 1
    assert "emissions_grams.0.quality: " in stderr
    assert stderr.count("\n") == 1


@dataclass(frozen=True)
class RunSnapshot:
    """Run as the exporter's metrics show it."""

    run: RunView
    power_max_w: Mapping[str, float] = field(default_factory=dict)


def exporter_report(folder, view):
    """Return the report of the exporter's history, which was scraped once, 2 s after the end of the
    run.
    """
    gpu = view.gpus[0]
    info = {"gpu": gpu.gpu, "uuid": gpu.uuid, "name": gpu.name, "architecture": gpu.architecture}
    scrape = [(m.GPU_INFO, {**info, "pci_bus_id": "", "driver_version": ""}, 1.0)]
    for reading in run_readings(RunSnapshot(view)):
        labels = dict(zip(reading.metric.labels, reading.labels, strict=True)) | dict(reading.extra)
        scrape.append((reading.metric, labels, reading.value))
    return imported_run_report(
        write_history(folder, series_of_scrapes([(BEGIN_S + 32, scrape)])), view.run_id
    )


def test_run_folder_report_equals_that_of_the_exporters_history(report, tmp_path):
    (tmp_path / "exporter").mkdir()

    imported, original = (
        report_document(one) for one in (report, exporter_report(tmp_path / "exporter", VIEW))
    )

    same = (
        "simulated",
        "workload",
        "outcome",
        "started_at_unix_seconds",
        "ended_at_unix_seconds",
        "duration_seconds",
    )
    figures = (
        "energy",
        "attributed_energy",
        "gpu",
        "work",
        "boundaries",
        "phases",
        "results",
        "emissions",
    )
    for name in (*same, *figures):
        assert imported[name] == original[name], name
    assert list(imported["work"]) == list(original["work"])
    assert original["labels"].items() <= imported["labels"].items()


def test_run_folder_estimated_cpu_energy_stays_an_estimate(imported, tmp_path):
    note = "package 0: its energy is estimated from utilization (--cpu.power-model), not measured"
    cpu = {"0": 1_500.0, "1": 1_200.0}
    halves = {"gpu": {UUID: 12.0}, "cpu": {"0": 3.0, "1": 2.0}}
    view = VIEW.model_copy(
        update={
            "energy_joules": VIEW.energy_joules | {"cpu": cpu},
            "energy_uncertainty_joules": halves,
            "notes": [note],
        }
    )

    report = single_report(imported(write_folder(tmp_path / "run", view)))

    energies = {one.device: one for one in report.devices if one.component == "cpu"}
    assert {device: one.estimated for device, one in energies.items()} == {"0": True, "1": False}
    assert (energies["0"].energy.value, energies["0"].energy.half) == (1_500, None)
    assert (energies["1"].energy.value, energies["1"].energy.half) == (1_200, 2)
    assert report.estimated == {"cpu"}
