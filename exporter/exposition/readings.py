"""What a scrape shows of the store: memory only, no driver and no file."""

from __future__ import annotations

from collections.abc import Iterator

from exporter.contract.metrics import (
    BUILD_INFO,
    CPU_ENERGY,
    CPU_POWER,
    EMISSIONS,
    GPU_ENERGY,
    GPU_ENERGY_METHOD,
    GPU_ENERGY_SUSPECT,
    GPU_INFO,
    GPU_INTEGRATED_ENERGY,
    GPU_POWER,
    GPU_UP,
    GPU_XID_ERRORS,
    HWMON_ENERGY,
    SOURCE_READ_SECONDS,
    SOURCE_READ_TIMESTAMP,
    SOURCE_READS,
    SOURCE_RESTARTS,
    SOURCE_UP,
)
from exporter.energy.plausibility import REASONS
from exporter.latest_values import GpuState, SourceState
from exporter.live_state import Store
from exporter.model import Device, Reading


def readings(store: Store) -> Iterator[Reading]:
    yield Reading(BUILD_INFO, (store.version,), 1.0)
    for gpu in store.gpus.values():
        yield from _gpu_readings(store, gpu)
    yield from store.counters.readings(GPU_XID_ERRORS)
    shown = shown_devices(store)
    for device in shown:
        if device.kind != "gpu":
            yield from _other_readings(store, device)
    for key, grams in store.emissions.items():
        yield Reading(EMISSIONS, key, grams)
    yield from store.attribution.readings(shown)
    for name, source in store.sources.items():
        yield from source.batch.readings
        yield from store.counters.accumulate(_source_readings(name, source), from_zero=True)


def shown_devices(store: Store) -> list[Device]:
    """Those whose energy is read now."""
    return [device for device in store.lines if store.is_read(device)]


def _gpu_readings(store: Store, gpu: GpuState) -> Iterator[Reading]:
    info = gpu.info
    labels = (info.index, info.uuid)
    yield Reading(GPU_UP, labels, float(gpu.up))
    line = store.lines.get(gpu.device)
    poll = line.latest if line else None
    if not gpu.up or line is None or poll is None:
        return
    described = (info.name, info.architecture, info.pci_bus_id, info.driver_version)
    yield Reading(GPU_INFO, (*labels, *described), 1.0)
    power_w = poll.display_w
    if power_w is not None:
        yield Reading(GPU_POWER, labels, power_w)
    yield Reading(GPU_ENERGY, labels, line.totals.energy_j)
    yield Reading(GPU_INTEGRATED_ENERGY, labels, line.totals.integrated_j)
    yield Reading(GPU_ENERGY_METHOD, (*labels, "counter" if line.has_counter else "integral"), 1.0)
    for reason in REASONS:
        yield Reading(GPU_ENERGY_SUSPECT, (*labels, reason), float(reason in gpu.check.reasons))
    yield from gpu.readings.values()


def _other_readings(store: Store, device: Device) -> Iterator[Reading]:
    line = store.lines[device]
    if device.kind == "hwmon":
        chip, _, sensor = device.id.rpartition("/")
        yield Reading(HWMON_ENERGY, (chip, sensor), line.totals.energy_j)
        return
    yield Reading(CPU_ENERGY, (device.id, device.kind), line.totals.energy_j)
    if device in store.power_w:
        yield Reading(CPU_POWER, (device.id, device.kind), store.power_w[device])


def _source_readings(name: str, source: SourceState) -> Iterator[Reading]:
    yield Reading(SOURCE_UP, (name,), float(source.up))
    if source.read_at is not None:
        yield Reading(SOURCE_READ_TIMESTAMP, (name,), source.read_at)
    for outcome, count in source.reads.items():
        yield Reading(SOURCE_READS, (name, outcome), float(count))
        yield Reading(SOURCE_READ_SECONDS, (name, outcome), source.seconds[outcome])
    yield Reading(SOURCE_RESTARTS, (name,), float(source.restarts))
