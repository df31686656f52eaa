"""Data types of simulated GPUs and their state. Times are CLOCK_BOOTTIME seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

from exporter.simulation.loads import Load

KEPT_SEGMENTS = 32
MAX_PROCESSES = 16
MAX_INSTANCES = 7
KEPT_XIDS = 16
IDLE_CLOCK_MHZ = 345
CLOCK_STEP_MHZ = 15
AMPERE, ADA, HOPPER = 7, 8, 9  # NVML's numbers of the architectures


class Fault(IntFlag):
    """Faults of a simulated GPU.

    NO_FIELDS: the energy and power fields are unsupported, while the older calls work. INIT_HANG on any GPU: every
    initialization hangs, even without attaching. UNBOUND: another driver has the GPU, so that a new process does not
    find it and a process that had it open has lost it. FORBIDDEN: setting its power limit or clock lock is denied.
    UNMOVED: setting them succeeds without effect.
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
    """Period from `begin_s` on, in which the GPU runs `load`, started at `load_begin_s`, under `limit_w`."""

    begin_s: float
    begin_j: float
    limit_w: float
    load_begin_s: float
    load: Load
    begin_capped_s: float = 0.0

    def energy_j(self, t: float) -> float:
        """Return the GPU's energy since the state file was created."""
        since_j = self.load.energy_j(t - self.load_begin_s, self.limit_w)
        return self.begin_j + (since_j - self.load.energy_j(self.begin_s - self.load_begin_s, self.limit_w))

    def capped_s(self, t: float) -> float:
        """Return how long the limit has reduced the GPU's power since the state file was created."""
        since_s = self.load.over_s(t - self.load_begin_s, self.limit_w)
        return self.begin_capped_s + (since_s - self.load.over_s(self.begin_s - self.load_begin_s, self.limit_w))


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
        """True from Ampere on except GA100, where nvmlDeviceGetPowerUsage is a 1 s average (NVML documentation)."""
        return self.architecture >= AMPERE and self.compute_capability != (8, 0)

    @property
    def fans(self) -> int:
        return 0 if self.is_of_data_centre else 2


@dataclass(frozen=True, slots=True)
class SimulatedProcess:
    """Process with its share of the whole GPU; `instance` is the number of its MIG GPU instance, or 0."""

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
    """Simulated GPU and its state. `segments` are the latest of `changes` in total, oldest first."""

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
        """Dynamic power of a process under the lock, as a share of the unlocked: the cube of the clock ratio."""
        return self.clock_ratio * self.clock_ratio * self.clock_ratio
