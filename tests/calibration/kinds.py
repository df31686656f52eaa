"""All intervals that are tested."""

from tests.calibration import (
    comparisons,
    emissions,
    host,
    live_requests,
    ranges,
    requests,
    sensors,
    tenants,
    variation,
)

KINDS = (
    *sensors.KINDS,
    *host.KINDS,
    *emissions.KINDS,
    *ranges.KINDS,
    *comparisons.KINDS,
    *variation.KINDS,
    *tenants.KINDS,
    *requests.KINDS,
    *live_requests.KINDS,
)
