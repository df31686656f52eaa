"""Sweeps of a simulated load with known energy and speed at each cap, with noise."""

from __future__ import annotations

import math

import numpy as np

from wattline.figures import Figure
from wattline_analyzer.core.run_report import Work
from wattline_analyzer.recommend.sweep import Setting, Sweep, SweepGpu, SweepRun

CAPS_W = (300, 350, 400, 450, 500, 550, 600, 650, 700)
PEAK_W, STATIC_W, LIGHT_W, STEP_S = 700.0, 300.0, 180.0, 0.05


def power_and_speed(name, cap_w):
    """Return power and speed of `workloads job simulated-load` on an H200."""
    if name == "light":
        return LIGHT_W, 1.0
    if name == "memory":
        return cap_w, cap_w / PEAK_W
    return cap_w, max(0.2, math.cbrt((cap_w - STATIC_W) / (PEAK_W - STATIC_W)))


def sample_run(
    cap_w, energy_j, time_s, *, repeat="1", steps=100.0, gpus=1, settings=(), limit_w=None, **facts
):
    """Return a run; energy and time cover the whole run."""
    return SweepRun(
        run_id=f"{'-'.join(text for _, text in settings)}{cap_w}-{repeat}",
        workload="load",
        labels={"experiment": "known", "repeat": str(repeat)},
        setting=Setting(tuple(settings), cap_w),
        repeat=str(repeat),
        gpus=tuple(SweepGpu("", str(index), f"GPU-{index}") for index in range(gpus)),
        gpu_name="SIMULATED H200",
        started_at_s=0.0,
        duration_s=time_s,
        energy=Figure(energy_j, 1.0),
        **{
            "work": {"steps": Work("steps", steps, steps / time_s, Figure(energy_j / steps))}
            if steps
            else {},
            "limit_w": limit_w or cap_w,
            "capped_s": 0.0 if (watts := energy_j / time_s / gpus) < cap_w * 0.9 else time_s,
        }
        | {"p95_power_w": watts, "mean_power_w": watts}
        | facts,
    )


def sample_sweep(name, seed, *, noise=0.015, repeats=5, caps_w=CAPS_W, steps=100.0):
    """Return a sweep; `noise` is the relative standard deviation of energy and of time, and of each
    repeat's drift.
    """
    rng = np.random.default_rng(seed)
    runs = []
    for repeat in range(1, repeats + 1):
        drift = rng.normal(0, noise)
        for cap_w in caps_w:
            watts, speed = power_and_speed(name, cap_w)
            time_s = steps * STEP_S / speed * math.exp(rng.normal(0, noise / 3))
            energy_j = steps * STEP_S / speed * watts * math.exp(drift + rng.normal(0, noise))
            facts = (
                {"capped_s": 0.0, "p95_power_w": watts}
                if name == "light"
                else {"capped_s": time_s, "p95_power_w": watts}
            )
            runs.append(sample_run(cap_w, energy_j, time_s, repeat=repeat, steps=steps, **facts))
    return Sweep(name, tuple(runs))
