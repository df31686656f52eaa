"""A glance for machines: an object, and a row a GPU, with stable keys that carry their units."""

from __future__ import annotations

from typing import Any

from analyzer.live.samples import Glance, GpuNow, RunNow
from analyzer.output.keys import by_component


def document(glance: Glance, source: str) -> dict[str, Any]:
    return {
        "t_unix_seconds": glance.at_s,
        "source": source,
        "gpu_power_watts": glance.power_w,
        "nodes": [
            {
                "instance": node.instance,
                "newest_sample_unix_seconds": node.seen_s,
                "age_seconds": node.age_s,
                "scrape_interval_seconds": node.interval_s,
                "stale": node.stale,
                "sources_down": list(node.down),
            }
            for node in glance.nodes
        ],
        "gpus": [gpu_row(gpu) for gpu in glance.gpus],
        "runs": [_run(run) for run in glance.runs],
        "carbon": [
            {
                "instance": one.instance,
                "region": one.region,
                "basis": one.basis,
                "quality": one.quality,
                "intensity_grams_per_kilowatt_hour": one.grams_per_kwh,
                "component": one.component,
                "emissions_grams_per_hour": one.grams_per_hour,
            }
            for one in glance.carbon
        ],
    }


def gpu_row(gpu: GpuNow) -> dict[str, Any]:
    return {
        "instance": gpu.instance,
        "gpu": gpu.gpu,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "up": gpu.up,
        "power_watts": gpu.power_w,
        "power_limit_watts": gpu.limit_w,
        "energy_joules": gpu.energy_j,
        "energy_of_run": gpu.energy_of or None,
        "counter_joules": gpu.counter_j,
        "utilization_ratio": gpu.utilization,
        "memory_used_bytes": gpu.memory_used_bytes,
        "memory_total_bytes": gpu.memory_total_bytes,
        "temperature_celsius": gpu.temperature_celsius,
        "sm_clock_hertz": gpu.sm_clock_hz,
        "clock_events": list(gpu.held_by),
        "processes": list(gpu.processes),
        "runs": list(gpu.runs),
    }


def _run(run: RunNow) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "workload": run.workload,
        "state": run.state,
        "instances": list(run.instances),
        "duration_seconds": run.duration_s,
        **by_component(run.energy),
        "unit": run.unit,
        "work": run.amount,
        "units_per_second": run.per_second,
        "energy_per_unit_joules": run.energy_per_unit_j,
    }
