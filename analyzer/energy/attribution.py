"""The run's share of a device that others used as well."""

from __future__ import annotations

from collections.abc import Mapping

from analyzer.model.devices import AttributedDevice, MeasuredDevice, fields_of

POLICIES: Mapping[str, str] = {
    "idle_shared": "its share by load, and of the idle power an equal share among those that hold the device",
    "idle_apart": "its share by load of the power above idle; the idle power is unattributed",
}
"""The attribution policies with a description."""
_SHARED = "idle_shared"
_EDGE_S = 0.1
"""Energy is attributed at polls: at each edge a run alone may miss what the sensor shows at its next update."""
_LEAST_RATIO = 0.02
_LEAST_J = 1.0


def attribute_device(device: MeasuredDevice, shares_j: Mapping[str, float]) -> AttributedDevice:
    """Add the run's share by policy; `shares_j` are the ledger's, empty where the exporter does not attribute."""
    attributed_j = {policy: shares_j[policy] for policy in POLICIES if policy in shares_j}
    return AttributedDevice(
        **fields_of(device), attributed_j=attributed_j, divided=_is_divided(device, attributed_j.get(_SHARED))
    )


def _is_divided(device: MeasuredDevice, attributed_j: float | None) -> bool:
    """Return True where others used a part of the energy, even if the holders bear the idle power."""
    if attributed_j is None:
        return False
    mean_w = device.mean_power_w.value if device.mean_power_w else 0.0
    edges_j = 2 * _EDGE_S * max(mean_w, device.max_power_w or 0.0) + (device.energy.half or 0.0)
    missing_j = device.energy.value - attributed_j
    return missing_j > max(_LEAST_RATIO * device.energy.value, _LEAST_J, edges_j)
