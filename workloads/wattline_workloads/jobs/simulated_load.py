"""Run steps on simulated GPUs whose speed depends on the power cap by a known law."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import wattline
from wattline.client.barrier import BarrierError
from wattline.client.messages import message_line
from wattline_workloads.jobs.base import (
    JobParser,
    job_parser,
    percentile_results,
    positive_int,
    positive_seconds,
)
from wattline_workloads.runner.signals import KERNEL_UNWIND_LIMIT_S, unwind_on_signal

if TYPE_CHECKING:
    from wattline_workloads.runner.simulated_gpu import GpuLoad
import math
from typing import Literal

from wattline_exporter.simulation import Product

LawName = Literal["compute", "memory", "light"]
_LEAST_SPEED = 0.2
_STATIC_SHARE = 3 / 7
_LIGHT_SHARE = 0.9
_JOB = "simulated-load"
_MEMORY_BYTES = 8 << 30


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Law of speed and power; `best_w` is the cap of least energy per step of `compute`, default
    9/14 of the peak.
    """

    name: LawName
    product: Product
    best_w: float | None = None

    def __post_init__(self) -> None:
        product = self.product
        if self.name == "compute" and not product.limit_min_w <= self.cheapest_w <= product.peak_w:
            raise ValueError(
                f"--best {self.cheapest_w:g}: {product.name} supports caps of "
                f"{product.limit_min_w:g} to "
                f"{product.peak_w:g} W"
            )

    @property
    def cheapest_w(self) -> float:
        return self.best_w or 1.5 * _STATIC_SHARE * self.product.peak_w

    @property
    def utilization(self) -> float:
        """Demanded share of the GPU's dynamic power."""
        product = self.product
        demanded_w = _LIGHT_SHARE * product.limit_min_w if self.name == "light" else product.peak_w
        return (demanded_w - product.idle_w) / (product.peak_w - product.idle_w)

    def speed(self, power_w: float, clock_ratio: float) -> float:
        """Return the speed at this power and, for `light`, this clock ratio, as a share of full
        speed.
        """
        match self.name:
            case "light":
                return clock_ratio
            case "memory":
                return min(1.0, power_w / self.product.peak_w)
            case "compute":
                static_w = self.cheapest_w / 1.5
                dynamic = max(0.0, power_w - static_w) / (self.product.peak_w - static_w)
                return min(1.0, max(_LEAST_SPEED, math.cbrt(dynamic)))


def parser() -> JobParser:
    options = job_parser(_JOB, __doc__)
    options.add_argument(
        "--law",
        choices=("compute", "memory", "light"),
        default="compute",
        help="law of speed; compute: one cap has the least energy; memory: all caps are equal; "
        "light: no cap binds; "
        "default: compute",
    )
    options.add_argument(
        "--best",
        type=_watts,
        metavar="WATTS",
        help="cap with the least energy, for compute; default: 9/14 of the peak",
    )
    options.add_argument(
        "--step-seconds",
        type=positive_seconds,
        default=0.05,
        metavar="SECONDS",
        help="duration of a step at full speed; default: 0.05",
    )
    until = options.add_mutually_exclusive_group()
    until.add_argument("--steps", type=positive_int, metavar="N", help="number of steps")
    until.add_argument(
        "--duration",
        type=positive_seconds,
        default=10.0,
        metavar="SECONDS",
        help="duration of the measurement; default: 10",
    )
    return options


def _watts(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a power limit; give watts, like 450")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    with unwind_on_signal(KERNEL_UNWIND_LIMIT_S), wattline.run(_JOB, unit="steps") as run:
        if run.simulation is None:
            text = (
                f"{_JOB}: the GPUs of this run are not simulated; start exporter serve --simulate "
                "8xH200 and give its address with --exporter"
            )
            sys.exit(message_line(text))
        try:
            _import_all()
            run.barrier()
            with run.phase("measure"), _loaded(Path(run.simulation), options) as (gpus, law):
                measured = _step(run, gpus, law, options)
            run.result(**_results(measured))
        except (ValueError, BarrierError) as error:
            sys.exit(message_line(f"{_JOB}: {error}"))
    return 0


@dataclass(frozen=True, slots=True)
class _MeasuredSteps:
    """Steps of the measurement."""

    latencies_s: Sequence[float]
    took_s: float
    joules: float
    """Energy by the law, for comparison with the measurement."""


def _import_all() -> None:
    """Import slow modules before the measurement."""
    import numpy as np  # noqa: F401  # slow to import

    from wattline_workloads.runner import simulated_gpu as simulated  # noqa: F401  # slow to import


@contextlib.contextmanager
def _loaded(path: Path, options: argparse.Namespace) -> Iterator[tuple[list[GpuLoad], PowerLaw]]:
    """Load the GPUs of the run by the law."""
    from wattline_exporter.simulation import Simulation
    from wattline_workloads.runner.simulated_gpu import drive_simulated_gpus

    with Simulation.open(path) as simulation:
        law = PowerLaw(options.law, simulation.gpus[0].product, options.best)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    with drive_simulated_gpus(path, visible, _MEMORY_BYTES, law.utilization) as gpus:
        yield gpus, law


def _step(
    run: wattline.ActiveRun, gpus: Sequence[GpuLoad], law: PowerLaw, options: argparse.Namespace
) -> _MeasuredSteps:
    """Run the steps; a step ends when the slowest GPU has finished."""
    latencies_s: list[float] = []
    joules = 0.0
    begin_s = time.monotonic()
    end_s = begin_s + options.duration
    while not latencies_s or (
        len(latencies_s) < options.steps if options.steps else time.monotonic() < end_s
    ):
        step_begin_s = time.monotonic()
        took_s = max(options.step_seconds / law.speed(gpu.power_w, gpu.clock_ratio) for gpu in gpus)
        joules += took_s * sum(gpu.power_w for gpu in gpus)
        for gpu in gpus:
            gpu.work_for(took_s)
        latencies_s.append(time.monotonic() - step_begin_s)
        run.iteration(latencies_s[-1], steps=1)
    return _MeasuredSteps(latencies_s, time.monotonic() - begin_s, joules)


def _results(measured: _MeasuredSteps) -> dict[str, float]:
    steps = len(measured.latencies_s)
    return {
        "steps_per_second": steps / measured.took_s,
        "law_joules_per_step": measured.joules / steps,
        **percentile_results("step_seconds", measured.latencies_s),
    }


if __name__ == "__main__":
    sys.exit(main())
