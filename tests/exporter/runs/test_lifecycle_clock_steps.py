import pytest

from wattline_exporter.runs.lifecycle import ClockSteps
from wattline_exporter.sensors.readings import ClockReading


def test_clock_steps_first_reading_reports_nothing():
    assert ClockSteps().take(ClockReading(100.0, 1_700_000_000.0, 90.0)) == (0.0, 0.0)


@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0, 2.0])
def test_clock_steps_set_clock_is_reported_as_step(step_s):
    wall = ClockSteps()
    wall.take(ClockReading(100.0, 1_700_000_000.0, 90.0))

    assert wall.take(ClockReading(107.0, 1_700_000_007.0 + step_s, 97.0)) == (step_s, 0.0)
    assert wall.take(ClockReading(108.0, 1_700_000_008.0 + step_s, 98.0)) == (0.0, 0.0)


def test_clock_steps_system_sleep_is_not_a_step():
    wall = ClockSteps()
    wall.take(ClockReading(100.0, 1_700_000_000.0, 90.0))

    assert wall.take(ClockReading(701.0, 1_700_000_601.0, 91.0)) == (0.0, 600.0)


def test_clock_steps_drift_is_ignored():
    wall = ClockSteps()
    wall.take(ClockReading(100.0, 1_700_000_000.0, 90.0))

    assert wall.take(ClockReading(101.0, 1_700_000_001.4, 90.7)) == (0.0, 0.0)
