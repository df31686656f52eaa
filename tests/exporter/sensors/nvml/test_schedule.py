"""Schedule of the NVML worker."""

from wattline_exporter.sensors.nvml.schedule import (
    BURST_PERIOD_S,
    BURST_PROCESSES_S,
    COALESCE_S,
    COALESCE_STEADY_S,
    FAST_S,
    SamplingSchedule,
)
from wattline_exporter.sensors.readings import SamplingOrder


def test_processes_are_listed_often_during_a_burst_only():
    schedule = SamplingSchedule(SamplingOrder(processes_every_s=5.0))
    assert schedule.processes_every_s == 5.0

    schedule.follow(SamplingOrder(burst_s=60.0, processes_every_s=1.0))
    assert schedule.processes_every_s == BURST_PROCESSES_S

    schedule.follow(SamplingOrder(processes_every_s=1.0))
    assert schedule.processes_every_s == 1.0


def test_burst_without_locating_updates_only_sends_and_lists_sooner():
    schedule = SamplingSchedule(SamplingOrder(period_s=FAST_S))
    assert schedule.round_s() == FAST_S
    assert schedule.coalesce_s() == COALESCE_STEADY_S

    schedule.follow(SamplingOrder(period_s=FAST_S, burst_s=60.0, locates_updates=False))
    assert schedule.round_s() == FAST_S
    assert schedule.coalesce_s() == COALESCE_S
    assert schedule.processes_every_s == BURST_PROCESSES_S

    schedule.follow(SamplingOrder(period_s=FAST_S, burst_s=60.0))
    assert schedule.round_s() == BURST_PERIOD_S


def test_burst_reads_as_many_gpus_in_a_time_at_either_rate():
    """A round each 13 ms reads one GPU; one each 47 ms reads 47 / 13, rounded to 4."""
    schedule = SamplingSchedule(SamplingOrder(period_s=1.0))
    assert schedule.reads_a_round() is None  # all

    schedule.follow(SamplingOrder(period_s=FAST_S))
    assert schedule.reads_a_round() == 1

    schedule.follow(SamplingOrder(period_s=FAST_S, burst_s=60.0))
    assert schedule.reads_a_round() == 1

    schedule.follow(SamplingOrder(period_s=FAST_S, burst_s=60.0, locates_updates=False))
    assert schedule.reads_a_round() == 4
