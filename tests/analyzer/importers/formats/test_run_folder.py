"""Import of a run folder with the exporter's response: its report equals that of the exporter's
history.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from tests.analyzer.importers.sample_files import BEGIN_S, imported_run_report, single_report
from tests.analyzer.node import series_of_scrapes, write_history
from wattline.contract import metrics as m
from wattline.contract.api import RunGpu
from wattline.contract.run import Emissions, Run, RunDevice, RunPhase
from wattline.figures import Figure
from wattline_analyzer.report.document import report_document
from wattline_exporter.web.series import run_readings
from wattline_workloads.runner.run_folder import metrics_document

UUID = "GPU-1f5b0f3e-0000-4000-8000-000000000001"
GPU = RunDevice("gpu", UUID, Figure(6_500.0, 12.0, covered_ratio=0.98), integrated_j=6_490.0)
RUN = Run(
    run_id="ours-1",
    workload="llm",
    labels={"model": "tiny", "user": "u1"},
    gpus=(RunGpu("3", UUID, "SIMULATED NVIDIA H200", "Hopper"),),
    state="ended",
    outcome="ok",
    started_at=BEGIN_S,
    ended_at=BEGIN_S + 30,
    duration_s=30.0,
    phases=(
        RunPhase("warmup", BEGIN_S, 10.0, {"gpu": Figure(500.0)}, last_started_at=BEGIN_S),
        RunPhase(
            "measure",
            BEGIN_S + 10,
            20.0,
            {"gpu": Figure(6_000.0, 30.0)},
            work={"requests": 10.0, "generated_tokens": 1_000.0},
            last_started_at=BEGIN_S + 10,
        ),
    ),
    work={"requests": 10.0, "generated_tokens": 1_000.0},
    work_unit="requests",
    results={"ttft_seconds_mean": 0.1},
    devices=(GPU,),
    emissions=(Emissions("gpu", "average", "static", 0.4),),
)


def write_folder(folder, run=RUN):
    """Write the files as the runner does."""
    folder.mkdir()
    start = {
        "event": "start",
        "t": BEGIN_S,
        "run_id": run.run_id,
        "workload": run.workload,
        "gpus": [UUID],
    }
    events = [
        start | {"labels": {"model": "tiny"}, "command": ["x"], "config": {}},
        {"event": "phase", "t": BEGIN_S, "name": "warmup"},
        {"event": "phase", "t": BEGIN_S + 10, "name": "measure"},
        {"event": "end", "t": BEGIN_S + 30.2, "outcome": "ok", "exit_code": 0, "work": run.work}
        | {"duration_seconds": 30.0, "results": run.results},
    ]
    (folder / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    metrics = {"exit_code": 0, **metrics_document(run)}
    (folder / "metrics.yml").write_text(yaml.safe_dump(metrics, sort_keys=False))
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
    assert device.energy.bias is None
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
        next(phase.energy["gpu"].half_width for phase in report.phases if phase.name == "measure")
        == 30
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
    shared = replace(RUN, devices=(replace(GPU, attributed_j=3_250.0),))

    report = single_report(imported(write_folder(tmp_path / "run", shared)))

    assert [work.energy_per_unit.value for work in report.work] == [
        pytest.approx(325),
        pytest.approx(3.25),
    ]


def test_run_folder_share_counts_the_energy_before_use_once(imported, tmp_path):
    """The exporter attributed 3,250 J, 250 J of them from before the first use."""
    shared = replace(RUN, devices=(replace(GPU, attributed_j=3_250.0, before_use_j=250.0),))

    report = single_report(imported(write_folder(tmp_path / "run", shared)))

    assert report.energies.shares == {"gpu": {"idle_shared": 3_250.0}}


def test_run_folder_keeps_the_exporters_highest_power(imported, tmp_path):
    run = replace(RUN, power_max_w={GPU.device_id: 412.0})

    (device,) = single_report(imported(write_folder(tmp_path / "run", run))).devices

    assert device.max_power_w == 412


def test_run_folder_with_invalid_response_is_refused(call, tmp_path):
    folder = write_folder(tmp_path / "run")
    metrics = folder / "metrics.yml"
    metrics.write_text(metrics.read_text().replace("quality: static", "quality: [static]"))

    code, _, stderr = call("import", folder, "--out", tmp_path / "h.sqlite")

    assert code == 1
    assert "emissions_grams.0.quality: " in stderr
    assert stderr.count("\n") == 1


def exporter_report(folder, run):
    """Return the report of the exporter's history, which was scraped once, 2 s after the end of the
    run.
    """
    gpu = run.gpus[0]
    info = {"gpu": gpu.gpu, "uuid": gpu.uuid, "name": gpu.name, "architecture": gpu.architecture}
    scrape = [(m.GPU_INFO, {**info, "pci_bus_id": "", "driver_version": ""}, 1.0)]
    for reading in run_readings(run):
        labels = dict(zip(reading.metric.labels, reading.labels, strict=True)) | dict(reading.extra)
        scrape.append((reading.metric, labels, reading.value))
    return imported_run_report(
        write_history(folder, series_of_scrapes([(BEGIN_S + 32, scrape)])), run.run_id
    )


def test_run_folder_report_equals_that_of_the_exporters_history(report, tmp_path):
    (tmp_path / "exporter").mkdir()

    imported, original = (
        report_document(one) for one in (report, exporter_report(tmp_path / "exporter", RUN))
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
    cpus = RunDevice("cpu", "0", Figure(1_500.0, 3.0)), RunDevice("cpu", "1", Figure(1_200.0, 2.0))
    run = replace(RUN, devices=(GPU, *cpus), notes=(note,))

    report = single_report(imported(write_folder(tmp_path / "run", run)))

    energies = {one.device: one for one in report.devices if one.component == "cpu"}
    assert {device: one.estimated for device, one in energies.items()} == {"0": True, "1": False}
    assert (energies["0"].energy.value, energies["0"].energy.half_width) == (1_500, None)
    assert (energies["1"].energy.value, energies["1"].energy.half_width) == (1_200, 2)
    assert report.estimated == {"cpu"}
