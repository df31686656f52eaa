"""Schedule of the NVML worker."""

from wattline_exporter.sensors.nvml.schedule import BURST_PROCESSES_S, SamplingSchedule
from wattline_exporter.sensors.readings import SamplingOrder


def test_processes_are_listed_often_during_a_burst_only():
    schedule = SamplingSchedule(SamplingOrder(processes_every_s=5.0))
    assert schedule.processes_every_s == 5.0

    schedule.follow(SamplingOrder(burst_s=60.0, processes_every_s=1.0))
    assert schedule.processes_every_s == BURST_PROCESSES_S

    schedule.follow(SamplingOrder(processes_every_s=1.0))
    assert schedule.processes_every_s == 1.0
