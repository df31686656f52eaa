"""Synthetic states of waste in the hour of the two nodes: holders of idle GPUs, limits, throttling
and errors.

At the end, a run holds GPU 1 of node b and a pod holds GPU 0 of node a; both are idle, 15 W above
deep idle. GPU 0 of node b has a lower power limit and is throttled half of the time. GPU 1 of node
a has a model in memory and is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.grafana.node_series import ExportedValue
from wattline.contract import metrics as m
from wattline.contract.metrics import Metric

DEEP_IDLE_W, LIMIT_W, MAX_HZ = 45.0, 500.0, 2.1e9
IDLE_RUN = "notebook-1"
_SINCE_S = 3_000.0
"""Seconds from the start of the hour, after which no run works on GPU 1 of either node."""


def waits(index: str, t: float, hour_s: float, *, cluster: bool) -> bool:
    """Return True while a model waits on the GPU: GPU 1 of node a after its run."""
    return cluster and index == "1" and t >= hour_s + _SINCE_S


def waste_series(
    index: str, where: Mapping[str, str], hour_s: float, *, cluster: bool
) -> Iterator[tuple[Metric, dict[str, str], ExportedValue | float]]:
    """Yield the series of one GPU of node a (in a cluster) or b."""
    limited, idle = not cluster and index == "0", not cluster and index == "1"
    yield m.IDLE_POWER, {"component": "gpu", "device": where["uuid"]}, DEEP_IDLE_W
    yield m.GPU_CLOCK_MAX, {**where, "domain": "sm"}, MAX_HZ
    yield m.GPU_POWER_LIMIT, {**where, "kind": "requested"}, LIMIT_W if limited else 700.0
    yield m.GPU_POWER_LIMIT, {**where, "kind": "default"}, 700.0
    if limited:
        yield (
            m.GPU_CLOCK_EVENT_SECONDS,
            {**where, "reason": "hw_thermal_slowdown"},
            lambda t: max(t - hour_s - 1_800, 0.0) / 2,
        )
        yield (
            m.GPU_XID_ERRORS,
            {**where, "xid": "79"},
            lambda t: 1.0 if t > hour_s + _SINCE_S else None,
        )
        yield (
            m.GPU_XID_TIMESTAMP,
            {**where, "xid": "79"},
            lambda t: hour_s + _SINCE_S if t > hour_s + _SINCE_S else None,
        )
    held: ExportedValue = lambda t: 1.0 if t >= hour_s + _SINCE_S else None  # noqa: E731
    if idle:
        yield m.RUN_GPU_INFO, {**where, "run_id": IDLE_RUN}, held
    if cluster and index == "0":
        yield (
            m.GPU_POD_INFO,
            {**where, "namespace": "ml", "pod": "notebook-2", "container": "c"},
            held,
        )
