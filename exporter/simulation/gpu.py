"""A simulated GPU as arithmetic: what it draws, what that adds up to, and how it changes.

Pure. Times are CLOCK_BOOTTIME seconds. `tests/fakes/nvml/gpu.c` repeats this arithmetic in the same order of
operations, so that both give the same millijoule.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace

from exporter.simulation.card import (
    CLOCK_STEP_MHZ,
    IDLE_CLOCK_MHZ,
    KEPT_SEGMENTS,
    KEPT_XIDS,
    MAX_PROCESSES,
    Gpu,
    Instance,
    Process,
    Segment,
)
from exporter.simulation.loads import Constant, Load


def segment_at(gpu: Gpu, t: float) -> Segment | None:
    """None before the oldest that is kept."""
    return next((segment for segment in reversed(gpu.segments) if segment.begin_s <= t), None)


def cumulative_j(gpu: Gpu, t: float) -> float:
    segment = segment_at(gpu, t)
    if segment is None:  # sensors look a second back, so there is a power, that of idling, before the beginning too
        oldest = gpu.segments[0]
        return oldest.begin_j - gpu.product.idle_w * (oldest.begin_s - t)
    return segment.energy_j(t)


def cumulative_capped_s(gpu: Gpu, t: float) -> float:
    segment = segment_at(gpu, t)
    return gpu.segments[0].begin_capped_s if segment is None else segment.capped_s(t)


def energy_j(gpu: Gpu, t0: float, t1: float) -> float:
    """The true energy of [t0, t1]."""
    if gpu.changes > len(gpu.segments) and t0 < gpu.segments[0].begin_s:
        raise ValueError(
            f"GPU {gpu.index}: only the last {KEPT_SEGMENTS} changes of load or limit are kept; ask earlier"
        )
    return cumulative_j(gpu, t1) - cumulative_j(gpu, t0)


def with_segment(gpu: Gpu, load: Load, load_begin_s: float, now: float) -> Gpu:
    """From `now` on `load` under the GPU's limit; the energy so far is kept exactly. Raises ValueError for the past."""
    last = gpu.segments[-1]
    if now < last.begin_s:
        raise ValueError(f"GPU {gpu.index}: a change at {now:.3f} s lies before the last one, at {last.begin_s:.3f} s")
    segment = Segment(now, last.energy_j(now), gpu.limit_w, load_begin_s, load, last.capped_s(now))
    return replace(gpu, segments=(*gpu.segments, segment)[-KEPT_SEGMENTS:], changes=gpu.changes + 1)


def with_load(gpu: Gpu, load: Load, now: float) -> Gpu:
    return with_segment(gpu, load, now, now)


def with_limit(gpu: Gpu, limit_w: float, now: float) -> Gpu:
    """The load goes on where it is. Raises ValueError outside of what the card takes."""
    low_w, high_w = gpu.product.limit_min_w, gpu.product.limit_max_w
    if not low_w <= limit_w <= high_w:
        raise ValueError(f"GPU {gpu.index} takes a power limit of {low_w:g} to {high_w:g} W, not {limit_w:g} W")
    last = gpu.segments[-1]
    return with_segment(replace(gpu, limit_w=limit_w), last.load, last.load_begin_s, now)


def clocks_mhz(gpu: Gpu) -> range:
    """Those that its SM clock can be locked to."""
    return range(IDLE_CLOCK_MHZ, gpu.product.sm_clock_mhz + 1, CLOCK_STEP_MHZ)


def with_locked_clock(gpu: Gpu, mhz: int, now: float) -> Gpu:
    """0: not locked. Processes slow down and draw less; a load that was set goes on as it is. Raises ValueError."""
    clocks = clocks_mhz(gpu)
    if mhz and mhz not in clocks:
        raise ValueError(f"GPU {gpu.index} has SM clocks of {clocks[0]} to {clocks[-1]} MHz, not {mhz} MHz")
    locked = replace(gpu, locked_clock_mhz=mhz)
    return _with_processes(locked, gpu.processes, now) if gpu.processes else locked


def _with_processes(gpu: Gpu, processes: tuple[Process, ...], now: float) -> Gpu:
    used = min(1.0, sum(process.utilization for process in processes))
    demanded_w = gpu.product.idle_w + (gpu.product.peak_w - gpu.product.idle_w) * used * gpu.dynamic_ratio
    return with_load(replace(gpu, processes=processes), Constant(demanded_w), now)


def with_process(gpu: Gpu, process: Process, now: float) -> Gpu:
    """`process` beside the others; its utilization adds to theirs, up to 1."""
    others = tuple(other for other in gpu.processes if other.pid != process.pid)
    if len(others) == MAX_PROCESSES:
        raise ValueError(f"GPU {gpu.index}: a simulated GPU has room for {MAX_PROCESSES} processes")
    return _with_processes(gpu, (*others, process), now)


def without_process(gpu: Gpu, pid: int, now: float) -> Gpu:
    return _with_processes(gpu, tuple(process for process in gpu.processes if process.pid != pid), now)


def with_counter_reset(gpu: Gpu, now: float) -> Gpu:
    last = gpu.segments[-1]
    return replace(gpu, energy_at_load_j=last.energy_j(now), capped_at_load_s=last.capped_s(now), frozen=None)


def with_xid(gpu: Gpu, xid: int) -> Gpu:
    return replace(gpu, xids=(*gpu.xids, xid)[-KEPT_XIDS:], xid_count=gpu.xid_count + 1)


def demand_w(gpu: Gpu, t: float) -> float:
    """What the load would draw without a limit."""
    segment = segment_at(gpu, t)
    return segment.load.demand_w(t - segment.load_begin_s) if segment else gpu.product.idle_w


def power_w(gpu: Gpu, t: float) -> float:
    """The true power."""
    segment = segment_at(gpu, t)
    return min(demand_w(gpu, t), segment.limit_w) if segment else gpu.product.idle_w


def speed(gpu: Gpu, utilization: float) -> float:
    """The share of full speed that lock and limit leave: dynamic power goes with the cube of the clock."""
    dynamic_w = (gpu.product.peak_w - gpu.product.idle_w) * utilization * gpu.dynamic_ratio
    return gpu.clock_ratio * speed_under(gpu, gpu.limit_w, gpu.product.idle_w + dynamic_w)


def speed_under(gpu: Gpu, limit_w: float, demanded_w: float) -> float:
    if demanded_w <= limit_w:
        return 1.0
    return math.cbrt(max(0.0, limit_w - gpu.product.idle_w) / (demanded_w - gpu.product.idle_w))


_SLICES = 7


def with_mig(gpu: Gpu, profiles: Sequence[str] | None) -> Gpu:
    """One instance for each profile, like `3g.71gb`, with the same UUID each time; None switches MIG off.

    Raises ValueError for a GPU without MIG, a profile that is none, or more than seven slices.
    """
    if not gpu.product.is_of_data_centre:
        raise ValueError(f"GPU {gpu.index}: a {gpu.product.name} has no MIG")
    instances = None if profiles is None else tuple(_instances(gpu, profiles))
    if instances and sum(instance.slices for instance in instances) > _SLICES:
        raise ValueError(f"GPU {gpu.index}: {', '.join(profiles or ())} is more than {_SLICES} slices")
    return replace(gpu, instances=instances)


def _instances(gpu: Gpu, profiles: Sequence[str]) -> Iterator[Instance]:
    for number, profile in enumerate(profiles, start=1):
        found = re.fullmatch(r"([1-7])g\.(\d{1,3})gb", profile)
        if not found:
            raise ValueError(f"a MIG profile is like 3g.71gb, not {profile!r}")
        name = uuid.uuid5(uuid.NAMESPACE_DNS, f"{gpu.uuid}/{number}/{profile}")
        yield Instance(number, f"MIG-{name}", profile, slices=int(found[1]), memory_bytes=int(found[2]) << 30)
