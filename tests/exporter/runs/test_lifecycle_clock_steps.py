import pytest

from exporter.model import ClockReading
from exporter.runs.lifecycle import ClockSteps


def test_the_first_look_tells_nothing():
    assert ClockSteps().take(ClockReading(100.0, 1_700_000_000.0, 90.0)) == (0.0, 0.0)


@pytest.mark.parametrize("step_s", [3_600.0, -3_600.0, 2.0])
def test_a_clock_that_was_set_is_told_from_time_that_passed(step_s):
    wall = ClockSteps()
    wall.take(ClockReading(100.0, 1_700_000_000.0, 90.0))

    assert wall.take(ClockReading(107.0, 1_700_000_007.0 + step_s, 97.0)) == (step_s, 0.0)
    assert wall.take(ClockReading(108.0, 1_700_000_008.0 + step_s, 98.0)) == (0.0, 0.0)


def test_a_machine_that_slept_did_not_set_its_clock():
    wall = ClockSteps()
    wall.take(ClockReading(100.0, 1_700_000_000.0, 90.0))

    assert wall.take(ClockReading(701.0, 1_700_000_601.0, 91.0)) == (0.0, 600.0)


def test_drift_is_neither():
    wall = ClockSteps()
    wall.take(ClockReading(100.0, 1_700_000_000.0, 90.0))

    assert wall.take(ClockReading(101.0, 1_700_000_001.4, 90.7)) == (0.0, 0.0)
