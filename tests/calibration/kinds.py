"""All intervals that are tested."""

from tests.calibration import comparisons, ranges, sensors, variation

KINDS = (*sensors.KINDS, *ranges.KINDS, *comparisons.KINDS, *variation.KINDS)
