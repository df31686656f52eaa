"""Power, energy and state changes of a simulated GPU (pure).

Times are CLOCK_BOOTTIME seconds. `tests/fakes/nvml/gpu.c` repeats this arithmetic in the same order
of operations, so that both give the same millijoules.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

from wattline_exporter.simulation.card import (
    CLOCK_STEP_MHZ,
    IDLE_CLOCK_MHZ,
    KEPT_SEGMENTS,
    KEPT_XIDS,
    MAX_PROCESSES,
    Segment,
    SimulatedGpuState,
    SimulatedInstance,
    SimulatedProcess,
)
from wattline_exporter.simulation.loads import Constant, Load


def segment_at(gpu: SimulatedGpuState, t: float) -> Segment | None:
    """Return the segment at `t`, or None before the oldest that is kept."""
    for segment in reversed(gpu.segments):
        if segment.begin_s <= t:
            return segment
    return None


def cumulative_j(gpu: SimulatedGpuState, t: float) -> float:
    segment = segment_at(gpu, t)
    if segment is None:  # sensors average over the past second: assume idle power before the start
        oldest = gpu.segments[0]
        return oldest.begin_j - gpu.product.idle_w * (oldest.begin_s - t)
    return segment.energy_j(t)


def cumulative_capped_s(gpu: SimulatedGpuState, t: float) -> float:
    segment = segment_at(gpu, t)
    return gpu.segments[0].begin_capped_s if segment is None else segment.capped_s(t)


def energy_j(gpu: SimulatedGpuState, t0: float, t1: float) -> float:
    """Return the true energy of [t0, t1]."""
    if gpu.changes > len(gpu.segments) and t0 < gpu.segments[0].begin_s:
        raise ValueError(
            f"GPU {gpu.index}: only the last {KEPT_SEGMENTS} changes of load or limit are kept; "
            "read earlier"
        )
    return cumulative_j(gpu, t1) - cumulative_j(gpu, t0)


def with_segment(
    gpu: SimulatedGpuState, load: Load, load_begin_s: float, now: float
) -> SimulatedGpuState:
    """Start a segment at `now` with `load`, keeping the energy so far exactly. Raises ValueError
    for the past.
    """
    last = gpu.segments[-1]
    if now < last.begin_s:
        raise ValueError(
            f"GPU {gpu.index}: a change at {now:.3f} s is earlier than the last one, at "
            f"{last.begin_s:.3f} s"
        )
    segment = Segment(now, last.energy_j(now), gpu.limit_w, load_begin_s, load, last.capped_s(now))
    return replace(gpu, segments=(*gpu.segments, segment)[-KEPT_SEGMENTS:], changes=gpu.changes + 1)


def with_load(gpu: SimulatedGpuState, load: Load, now: float) -> SimulatedGpuState:
    return with_segment(gpu, load, now, now)


def with_limit(gpu: SimulatedGpuState, limit_w: float, now: float) -> SimulatedGpuState:
    """Set the power limit while the load continues. Raises ValueError outside of the GPU's
    range.
    """
    low_w = gpu.product.limit_min_w
    high_w = gpu.product.limit_max_w
    if not low_w <= limit_w <= high_w:
        raise ValueError(
            f"GPU {gpu.index} takes a power limit of {low_w:g} to {high_w:g} W, not {limit_w:g} W"
        )
    last = gpu.segments[-1]
    return with_segment(replace(gpu, limit_w=limit_w), last.load, last.load_begin_s, now)


def clocks_mhz(gpu: SimulatedGpuState) -> range:
    """Return the clocks to which the SM clock can be locked."""
    return range(IDLE_CLOCK_MHZ, gpu.product.sm_clock_mhz + 1, CLOCK_STEP_MHZ)


def with_locked_clock(gpu: SimulatedGpuState, mhz: int, now: float) -> SimulatedGpuState:
    """Lock the SM clock, or unlock it with 0, which changes the power of processes only. Raises
    ValueError.
    """
    clocks = clocks_mhz(gpu)
    if mhz and mhz not in clocks:
        raise ValueError(
            f"GPU {gpu.index} has SM clocks of {clocks[0]} to {clocks[-1]} MHz, not {mhz} MHz"
        )
    locked = replace(gpu, locked_clock_mhz=mhz)
    return _with_processes(locked, gpu.processes, now) if gpu.processes else locked


def _with_processes(
    gpu: SimulatedGpuState, processes: tuple[SimulatedProcess, ...], now: float
) -> SimulatedGpuState:
    used = min(1.0, sum(process.utilization for process in processes))
    demanded_w = (
        gpu.product.idle_w + (gpu.product.peak_w - gpu.product.idle_w) * used * gpu.dynamic_ratio
    )
    return with_load(replace(gpu, processes=processes), Constant(demanded_w), now)


def with_process(
    gpu: SimulatedGpuState, process: SimulatedProcess, now: float
) -> SimulatedGpuState:
    """Add a process; its utilization adds to that of the others, up to 1."""
    others = tuple(other for other in gpu.processes if other.pid != process.pid)
    if len(others) == MAX_PROCESSES:
        raise ValueError(f"GPU {gpu.index}: a simulated GPU can have {MAX_PROCESSES} processes")
    return _with_processes(gpu, (*others, process), now)


def without_process(gpu: SimulatedGpuState, pid: int, now: float) -> SimulatedGpuState:
    return _with_processes(
        gpu, tuple(process for process in gpu.processes if process.pid != pid), now
    )


def with_counter_reset(gpu: SimulatedGpuState, now: float) -> SimulatedGpuState:
    last = gpu.segments[-1]
    return replace(
        gpu, energy_at_load_j=last.energy_j(now), capped_at_load_s=last.capped_s(now), frozen=None
    )


def with_xid(gpu: SimulatedGpuState, xid: int) -> SimulatedGpuState:
    return replace(gpu, xids=(*gpu.xids, xid)[-KEPT_XIDS:], xid_count=gpu.xid_count + 1)


def demand_w(gpu: SimulatedGpuState, t: float) -> float:
    """Return the power of the load without a limit."""
    segment = segment_at(gpu, t)
    return segment.load.demand_w(t - segment.load_begin_s) if segment else gpu.product.idle_w


def power_w(gpu: SimulatedGpuState, t: float) -> float:
    """Return the true power."""
    segment = segment_at(gpu, t)
    return min(demand_w(gpu, t), segment.limit_w) if segment else gpu.product.idle_w


def speed(gpu: SimulatedGpuState, utilization: float) -> float:
    """Return the share of full speed under lock and limit: dynamic power grows with the cube of the
    clock.
    """
    dynamic_w = (gpu.product.peak_w - gpu.product.idle_w) * utilization * gpu.dynamic_ratio
    return gpu.clock_ratio * speed_under(gpu, gpu.limit_w, gpu.product.idle_w + dynamic_w)


def speed_under(gpu: SimulatedGpuState, limit_w: float, demanded_w: float) -> float:
    if demanded_w <= limit_w:
        return 1.0
    return math.cbrt(max(0.0, limit_w - gpu.product.idle_w) / (demanded_w - gpu.product.idle_w))


_SLICES = 7


def with_mig(gpu: SimulatedGpuState, profiles: Sequence[str] | None) -> SimulatedGpuState:
    """Create one instance for each profile, like `3g.71gb`, with a reproducible UUID; None switches
    MIG off.

    Raises ValueError for a GPU without MIG, an invalid profile, or more than seven slices.
    """
    if not gpu.product.is_of_data_centre:
        raise ValueError(f"GPU {gpu.index}: {gpu.product.name} has no MIG")
    instances = None if profiles is None else tuple(_instances(gpu, profiles))
    if instances and sum(instance.slices for instance in instances) > _SLICES:
        raise ValueError(
            f"GPU {gpu.index}: {', '.join(profiles or ())} needs more than {_SLICES} slices"
        )
    return replace(gpu, instances=instances)


def _instances(gpu: SimulatedGpuState, profiles: Sequence[str]) -> Iterator[SimulatedInstance]:
    for number, profile in enumerate(profiles, start=1):
        match = re.fullmatch(r"([1-7])g\.(\d{1,3})gb", profile)
        if not match:
            raise ValueError(f"invalid MIG profile {profile!r}; use one like 3g.71gb")
        name = uuid.uuid5(uuid.NAMESPACE_DNS, f"{gpu.uuid}/{number}/{profile}")
        yield SimulatedInstance(
            number, f"MIG-{name}", profile, slices=int(match[1]), memory_bytes=int(match[2]) << 30
        )
