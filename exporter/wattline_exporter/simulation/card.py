"""Models of simulated GPUs, and the types of their state. Times are CLOCK_BOOTTIME seconds.

The models are from public data sheets; idle power is a typical value.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from enum import IntFlag

from wattline_exporter.simulation.loads import Load

KEPT_SEGMENTS = 32
MAX_PROCESSES = 16
MAX_INSTANCES = 7
KEPT_XIDS = 16
IDLE_CLOCK_MHZ = 345
CLOCK_STEP_MHZ = 15
AMPERE, ADA, HOPPER = 7, 8, 9  # NVML's numbers of the architectures


class Fault(IntFlag):
    """Faults of a simulated GPU.

    NO_FIELDS: the energy and power fields are unsupported, while the older calls work. INIT_HANG on
    any GPU: every initialization hangs, even without attaching. UNBOUND: another driver has the
    GPU, so that a new process does not find it and a process that had it open has lost it.
    FORBIDDEN: setting its power limit or clock lock is denied. UNMOVED: setting them succeeds
    without effect.
    """

    NONE = 0
    HANG = 1
    LOST = 2
    NO_COUNTER = 4
    NO_FIELDS = 8
    NO_AVERAGE = 16
    INIT_HANG = 32
    UNBOUND = 64
    FORBIDDEN = 128
    UNMOVED = 256


@dataclass(frozen=True, slots=True)
class Segment:
    """Period from `begin_s` on, in which the GPU runs `load`, started at `load_begin_s`, under
    `limit_w`.
    """

    begin_s: float
    begin_j: float
    limit_w: float
    load_begin_s: float
    load: Load
    begin_capped_s: float = 0.0

    def energy_j(self, t: float) -> float:
        """Return the GPU's energy since the state file was created."""
        since_j = self.load.energy_j(t - self.load_begin_s, self.limit_w)
        return self.begin_j + (
            since_j - self.load.energy_j(self.begin_s - self.load_begin_s, self.limit_w)
        )

    def capped_s(self, t: float) -> float:
        """Return how long the limit has reduced the GPU's power since the state file was
        created.
        """
        since_s = self.load.over_s(t - self.load_begin_s, self.limit_w)
        return self.begin_capped_s + (
            since_s - self.load.over_s(self.begin_s - self.load_begin_s, self.limit_w)
        )


@dataclass(frozen=True, slots=True)
class Product:
    """GPU model. `noise_w` is the amplitude of the sensor's noise.

    Data-centre models have ECC, MIG and a memory temperature sensor, and no fans.
    """

    name: str
    idle_w: float
    peak_w: float
    limit_min_w: float
    limit_max_w: float
    limit_default_w: float
    peak_flop_per_s: float
    memory_bytes: int
    architecture: int
    compute_capability: tuple[int, int]
    sm_clock_mhz: int
    memory_clock_mhz: int
    pci_device_id: int
    is_of_data_centre: bool = True
    sensor_period_s: float = 0.1
    instant_window_s: float = 0.025
    average_window_s: float = 1.0
    counter_period_s: float = 0.1
    noise_w: float = 0.2

    @property
    def averages_power_usage(self) -> bool:
        """True from Ampere on except GA100, where nvmlDeviceGetPowerUsage is a 1 s average (NVML
        documentation).
        """
        return self.architecture >= AMPERE and self.compute_capability != (8, 0)

    @property
    def fans(self) -> int:
        return 0 if self.is_of_data_centre else 2


@dataclass(frozen=True, slots=True)
class SimulatedProcess:
    """Process with its share of the whole GPU; `instance` is the number of its MIG GPU instance, or
    0.
    """

    pid: int
    utilization: float
    memory_bytes: int
    instance: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedInstance:
    """MIG instance: a GPU instance, numbered from 1, with one compute instance, number 0."""

    number: int
    uuid: str
    profile: str
    slices: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Frozen:
    """Constant values of sensor and counter from `at_s` on."""

    at_s: float
    instant_w: float
    average_w: float
    counter_j: float


@dataclass(frozen=True, slots=True)
class SimulatedGpuState:
    """Simulated GPU and its state. `segments` are the latest of `changes` in total, oldest
    first.
    """

    index: int
    uuid: str
    pci_bus_id: str
    product: Product
    sensor_phase_s: float
    counter_phase_s: float
    limit_w: float
    faults: Fault
    energy_at_load_j: float = 0.0
    frozen: Frozen | None = None
    processes: tuple[SimulatedProcess, ...] = ()
    segments: tuple[Segment, ...] = ()
    changes: int = 0
    capped_at_load_s: float = 0.0
    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    xids: tuple[int, ...] = ()
    """Latest XIDs of `xid_count` in total, oldest first."""
    xid_count: int = 0
    instances: tuple[SimulatedInstance, ...] | None = None
    """MIG instances; None while MIG is off."""
    locked_clock_mhz: int = 0
    """Locked SM clock, or 0."""

    @property
    def clock_ratio(self) -> float:
        """Locked SM clock as a share of the highest."""
        return self.locked_clock_mhz / self.product.sm_clock_mhz if self.locked_clock_mhz else 1.0

    @property
    def dynamic_ratio(self) -> float:
        """Dynamic power of a process under the lock, as a share of the unlocked: the cube of the
        clock ratio.
        """
        return self.clock_ratio * self.clock_ratio * self.clock_ratio


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
    match = re.fullmatch(r"(?:(\d{1,3})x)?(\w+)", spec.strip(), re.IGNORECASE)
    count = int(match[1] or 1) if match else 0
    if not match or match[2].upper() not in PRODUCTS or not 1 <= count <= _MAX_GPUS:
        names = ", ".join(PRODUCTS)
        raise ValueError(
            f"cannot simulate {spec!r}: unknown model or number; use 1 to {_MAX_GPUS} of {names}, "
            "like 8xH200"
        )
    return count, PRODUCTS[match[2].upper()]


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
