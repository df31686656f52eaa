"""Sensor of CPU energy: RAPL through powercap or perf, Grace's sockets, and an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from wattline_exporter.config.values import UsageError
from wattline_exporter.sensors.cpu.check import cpu_lines
from wattline_exporter.sensors.cpu.methods import CpuSource
from wattline_exporter.sensors.readings import Source
from wattline_exporter.sensors.registry import SensorContext, SensorKind

if TYPE_CHECKING:
    from wattline_exporter.sensors.cpu.estimate import PowerModel


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuOptions:
    """Options of CPU energy. Raises UsageError for an invalid power model."""

    power_model: Annotated[
        str | None,
        typer.Option(
            "--cpu.power-model",
            help="Estimate CPU energy from utilization where RAPL is missing.",
            metavar="idle=W,max=W",
        ),
    ] = None

    def __post_init__(self) -> None:
        self.parsed_model()

    def parsed_model(self) -> PowerModel | None:
        """Return the power model, None without one. Raises UsageError."""
        if self.power_model is None:
            return None
        from wattline_exporter.sensors.cpu.estimate import parse_power_model  # psutil

        try:
            return parse_power_model(self.power_model)
        except ValueError as error:
            raise UsageError(f"--cpu.power-model: {error}") from error


def find_cpu(options: CpuOptions, context: SensorContext) -> Sequence[CpuSource]:
    """Return one source, which tries all interfaces in order of preference."""
    from wattline_exporter.sensors.board import GraceSocketSource
    from wattline_exporter.sensors.cpu.estimate import CpuModelSource  # psutil, not for --help
    from wattline_exporter.sensors.cpu.perf import PerfSource
    from wattline_exporter.sensors.cpu.powercap import RaplSource

    methods: list[Source] = [
        RaplSource(context.sysfs),
        PerfSource(context.sysfs),
        GraceSocketSource(context.sysfs),
    ]
    model = options.parsed_model()
    if model:
        methods.append(CpuModelSource(model))
    return [CpuSource(methods)]


SENSOR = SensorKind(
    name="rapl",
    help="Read CPU and DRAM energy through RAPL.",
    period_s=1.0,
    find=find_cpu,
    options=CpuOptions,
    has_run_energy=True,
    check=cpu_lines,
    position=1,
)
