"""Immutable values of all sensors at one instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exporter.energy.emissions import EmissionKey
from exporter.model import Device, GpuInfo, Reading


@dataclass(frozen=True, slots=True)
class GpuEnergySnapshot:
    """Energies of a GPU that answers, and their quality. `suspect`: reasons to doubt the energy."""

    energy_j: float
    integrated_j: float
    has_counter: bool
    power_w: float | None
    suspect: frozenset[str]


@dataclass(frozen=True, slots=True)
class GpuSnapshot:
    """A GPU. One that does not answer has no energy and no readings."""

    info: GpuInfo
    up: bool
    energy: GpuEnergySnapshot | None = None
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """Energy of a device other than a GPU, and its mean power between the last two polls."""

    device: Device
    energy_j: float
    power_w: float | None


@dataclass(frozen=True, slots=True)
class SensorSnapshot:
    gpus: tuple[GpuSnapshot, ...]
    devices: tuple[DeviceSnapshot, ...]
    xid_errors: tuple[Reading, ...]
    emissions_grams: Mapping[EmissionKey, float]
    source_readings: tuple[tuple[Reading, ...], ...]
    """Per source: its own readings, and those of its health."""
    readable: frozenset[Device]
    """Devices whose energy is known up to now."""
