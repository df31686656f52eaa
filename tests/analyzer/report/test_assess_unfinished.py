"""Reports of a run without an end: 300 W for 20 s up to the last scrape, 360 g/kWh."""

from dataclasses import replace

import pytest

from tests.analyzer.node import START_S, NodeGpu, NodeRun, scrape_times
from tests.analyzer.run_reports import POWER_STEPS, run_frames, terminal_text
from wattline_analyzer.report.assess import assess
from wattline_analyzer.report.sections.report import report_tables

RUNNING = NodeRun(end_s=None)
SIMULATED = NodeGpu(POWER_STEPS, name="SIMULATED NVIDIA H200")
UNTIL_LAST_SCRAPE = scrape_times(1, START_S - 60, START_S + 20)


def running_report(folder, run=RUNNING, **options):
    """Return the report of a running run, whose exporter has no interval yet."""
    frames = run_frames(folder, run, times=UNTIL_LAST_SCRAPE, **options)
    devices = tuple(
        replace(device, energy_j=replace(device.energy_j, half_width=None))
        for device in frames.run.devices
    )
    return assess(replace(frames, run=replace(frames.run, devices=devices)))


def test_emissions_of_running_run_are_of_the_time_of_its_energy(tmp_path):
    """The ledger has the 4,200 J of the first 14 s: 0.42 g, the run 6,000 J: 0.6 g."""
    report = running_report(tmp_path, replace(RUNNING, emissions_g=0.42), intensity=360.0)
    (total,) = report.emission_totals

    assert report.headline.value == 6_000
    assert (total.mass_g.value, total.origin) == (pytest.approx(0.6), "by slot")
    assert total.mass_g.value == pytest.approx(sum(slot.mass_g for slot in report.carbon_slots))


def test_emissions_of_ended_run_are_those_of_the_ledger(tmp_path):
    report = assess(run_frames(tmp_path, NodeRun(emissions_g=0.42), intensity=360.0))

    assert [(total.mass_g.value, total.origin) for total in report.emission_totals] == [
        (0.42, "ledger")
    ]


def test_emissions_running_run_without_intensities_are_the_ledgers(tmp_path):
    report = running_report(tmp_path, replace(RUNNING, emissions_g=0.42))

    assert [(total.mass_g.value, total.origin) for total in report.emission_totals] == [
        (0.42, "ledger")
    ]


def test_phases_of_running_run_state_that_they_are_late(tmp_path):
    text = terminal_text(
        running_report(tmp_path, replace(RUNNING, phases={"measure": (14, 4_200)}))
    )

    assert "Not in any phase yet: 6.00 s; the exporter counts phases 6 s later than energy." in text


def test_net_energy_of_running_run_below_sensor_lag_is_left_out(tmp_path):
    """60 W all the time, as before the run; the utilization of 0 % shows that it is idle."""
    idle = NodeGpu([(START_S - 1_000, 60)], utilization=0.0)
    busy = NodeGpu(POWER_STEPS, utilization=0.0)
    (tmp_path / "busy").mkdir()

    assert running_report(tmp_path, gpus=[idle]).energies.net is None
    assert running_report(tmp_path / "busy", gpus=[busy]).energies.net.value == pytest.approx(
        240 * 20
    )


def test_tables_of_running_run_without_interval_have_no_empty_columns(tmp_path):
    tables = {
        table.title: table for table in report_tables(running_report(tmp_path, gpus=[SIMULATED]))
    }

    assert "Uncertainty budget" not in tables
    assert [column.title for column in tables["Energy by device"].columns][:2] == [
        "Device",
        "Energy",
    ]
    assert "95 % CI" not in " ".join(tables["Energy by device"].notes)
