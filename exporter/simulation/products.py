"""GPU models that can be simulated, from public data sheets; idle power is a typical value."""

from __future__ import annotations

import re
import uuid

from exporter.simulation.card import ADA, AMPERE, HOPPER, Fault, Product, SimulatedGpuState

PRODUCTS = {
    "H200": Product(
        name="SIMULATED NVIDIA H200",
        idle_w=78,
        peak_w=700,
        limit_min_w=200,
        limit_max_w=700,
        limit_default_w=700,
        peak_flop_per_s=67e12,
        memory_bytes=143_771 << 20,
        architecture=HOPPER,
        compute_capability=(9, 0),
        sm_clock_mhz=1980,
        memory_clock_mhz=3201,
        pci_device_id=0x233510DE,
    ),
    "H100": Product(
        name="SIMULATED NVIDIA H100 80GB HBM3",
        idle_w=70,
        peak_w=700,
        limit_min_w=200,
        limit_max_w=700,
        limit_default_w=700,
        peak_flop_per_s=67e12,
        memory_bytes=81_559 << 20,
        architecture=HOPPER,
        compute_capability=(9, 0),
        sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        pci_device_id=0x233010DE,
    ),
    "A100": Product(
        name="SIMULATED NVIDIA A100-SXM4-80GB",
        idle_w=60,
        peak_w=400,
        limit_min_w=100,
        limit_max_w=400,
        limit_default_w=400,
        peak_flop_per_s=19.5e12,
        memory_bytes=81_920 << 20,
        architecture=AMPERE,
        compute_capability=(8, 0),
        sm_clock_mhz=1410,
        memory_clock_mhz=1593,
        pci_device_id=0x20B210DE,
    ),
    "RTX4090": Product(
        name="SIMULATED NVIDIA GeForce RTX 4090",
        idle_w=22,
        peak_w=450,
        limit_min_w=150,
        limit_max_w=600,
        limit_default_w=450,
        peak_flop_per_s=82.6e12,
        memory_bytes=24_564 << 20,
        architecture=ADA,
        compute_capability=(8, 9),
        sm_clock_mhz=2520,
        memory_clock_mhz=10501,
        pci_device_id=0x268410DE,
        is_of_data_centre=False,
    ),
}
_BUSES = (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)  # PCI buses of an eight-GPU board
_MAX_GPUS = 64


def parse_spec(spec: str) -> tuple[int, Product]:
    """Parse `8xH200` into (8, PRODUCTS["H200"]); `H200` is one GPU."""
    found = re.fullmatch(r"(?:(\d{1,3})x)?(\w+)", spec.strip(), re.IGNORECASE)
    count = int(found[1] or 1) if found else 0
    if not found or found[2].upper() not in PRODUCTS or not 1 <= count <= _MAX_GPUS:
        known = ", ".join(PRODUCTS)
        raise ValueError(
            f"cannot simulate {spec!r}: unknown model or number; use 1 to {_MAX_GPUS} of {known}, like 8xH200"
        )
    return count, PRODUCTS[found[2].upper()]


def make_gpus(count: int, product: Product, node: str = "") -> tuple[SimulatedGpuState, ...]:
    """Create reproducible GPUs. Each further simulated node needs a name, for separate UUIDs."""
    return tuple(
        SimulatedGpuState(
            index=i,
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{i}.simulated.wattline')}",
            pci_bus_id=f"{i // len(_BUSES):08X}:{_BUSES[i % len(_BUSES)]:02X}:00.0",
            product=product,
            # GPUs update independently of each other: each has other phases
            sensor_phase_s=product.sensor_period_s * ((i * 0.37 + 0.11) % 1),
            counter_phase_s=product.counter_period_s * ((i * 0.61 + 0.29) % 1),
            limit_w=product.limit_default_w,
            # averaged power exists since the Ampere GPUs after GA100
            faults=Fault.NONE if product.averages_power_usage else Fault.NO_AVERAGE,
        )
        for i in range(count)
    )
