"""Which part of a device's energy is the run's, where others used the device as well. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.model.interval import Interval
from analyzer.model.samples import RunFrames, last
from exporter.contract.metrics import RUN_ATTRIBUTED_ENERGY

POLICIES: Mapping[str, str] = {
    "idle_shared": "its part by load, and of the idle power its part among those who held the device",
    "idle_apart": "its part by load of what the device drew above idle; the idle power is left to no run",
}
"""What each policy of attribution means, in a line."""
_SHARED = "idle_shared"
_EDGE_S = 0.1
"""Energy is divided at polls, so a run alone may miss what the sensor shows only at its next update, at each edge."""
_LEAST_RATIO = 0.02
_LEAST_J = 1.0


def attributed(frames: RunFrames, instance: str, component: str, device: str) -> dict[str, float]:
    """The run's joules by policy, those of the policies known here; empty where the exporter does not attribute."""
    where = {"instance": instance, "component": component, "device": device}
    rows = last(frames.ledger, RUN_ATTRIBUTED_ENERGY, run_id=frames.run_id, **where)
    found = {row.labels["policy"]: row.value for row in rows}
    return {policy: found[policy] for policy in POLICIES if policy in found}


def is_divided(energy: Interval, attributed_j: Mapping[str, float], mean_w: float, max_w: float | None) -> bool:
    """Whether a part of the device's energy is not the run's, even where the holders bear the idle power."""
    if _SHARED not in attributed_j:
        return False
    edges_j = 2 * _EDGE_S * max(mean_w, max_w or 0.0) + (energy.half or 0.0)
    missing_j = energy.value - attributed_j[_SHARED]
    return missing_j > max(_LEAST_RATIO * energy.value, _LEAST_J, edges_j)
