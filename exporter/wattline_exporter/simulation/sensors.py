"""Sensor values of a simulated GPU. `tests/fakes/nvml/sensors.c` computes the same, to the last
bit.
"""

from __future__ import annotations

import math

from wattline_exporter.simulation.card import (
    IDLE_CLOCK_MHZ,
    SimulatedGpuState,
    SimulatedInstance,
    SimulatedProcess,
)
from wattline_exporter.simulation.gpu import (
    cumulative_capped_s,
    cumulative_j,
    demand_w,
    segment_at,
    speed_under,
)

_64_BITS = (1 << 64) - 1
_SLOWDOWN_CELSIUS = 87
_PCIE_BYTES_PER_JOULE = {"tx": 250_000, "rx": 1_000_000}


def _update(t: float, period_s: float, phase_s: float) -> tuple[int, float]:
    """Return number and time of the last update at `t`."""
    number = math.floor((t - phase_s) / period_s)
    return number, phase_s + number * period_s


def _noise(index: int, update: int, salt: int) -> float:
    """Return reproducible noise in [-1, 1) with zero mean, by the finalizer of SplitMix64."""
    x = (update * 2 + salt + (index + 1) * 0x9E3779B97F4A7C15) & _64_BITS
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _64_BITS
    return ((x ^ (x >> 31)) >> 11) * 2.0**-52 - 1.0


def _sensed_w(gpu: SimulatedGpuState, t: float, window_s: float, salt: int) -> float:
    update, at_s = _update(t, gpu.product.sensor_period_s, gpu.sensor_phase_s)
    mean_w = (cumulative_j(gpu, at_s) - cumulative_j(gpu, at_s - window_s)) / window_s
    noisy_w = max(0.0, mean_w + gpu.product.noise_w * _noise(gpu.index, update, salt))
    return math.floor(noisy_w * 1e3 + 0.5) / 1e3  # NVML reports milliwatts


def instant_w(gpu: SimulatedGpuState, t: float) -> float:
    """Return the instantaneous power that the driver reports at `t`."""
    if gpu.frozen and t >= gpu.frozen.at_s:
        return gpu.frozen.instant_w
    return _sensed_w(gpu, t, gpu.product.instant_window_s, 0)


def average_w(gpu: SimulatedGpuState, t: float) -> float:
    """Return the averaged power that the driver reports at `t`."""
    if gpu.frozen and t >= gpu.frozen.at_s:
        return gpu.frozen.average_w
    return _sensed_w(gpu, t, gpu.product.average_window_s, 1)


def counter_j(gpu: SimulatedGpuState, t: float) -> float:
    """Return the driver's energy counter at `t`: whole millijoules since it was loaded."""
    if gpu.frozen and t >= gpu.frozen.at_s:
        return gpu.frozen.counter_j
    _, at_s = _update(t, gpu.product.counter_period_s, gpu.counter_phase_s)
    joules = max(0.0, cumulative_j(gpu, at_s) - gpu.energy_at_load_j)
    return (
        math.floor(joules * 1e3 + 1e-3) / 1e3
    )  # the microjoule corrects rounding: 2999.9999999 is 3000


def utilization(gpu: SimulatedGpuState, t: float) -> float:
    """Return the utilization, 0 to 1, at the sensor's last update."""
    _, at_s = _update(t, gpu.product.sensor_period_s, gpu.sensor_phase_s)
    share = (demand_w(gpu, at_s) - gpu.product.idle_w) / (gpu.product.peak_w - gpu.product.idle_w)
    if gpu.processes:
        share /= gpu.dynamic_ratio
    return min(1.0, max(0.0, share))


def is_capped(gpu: SimulatedGpuState, t: float) -> bool:
    segment = segment_at(gpu, t)
    return segment is not None and demand_w(gpu, t) > segment.limit_w


def sm_clock_mhz(gpu: SimulatedGpuState, t: float) -> int:
    segment = segment_at(gpu, t)
    demanded_w = demand_w(gpu, t)
    if segment is None or demanded_w <= gpu.product.idle_w:
        return IDLE_CLOCK_MHZ
    ratio = gpu.clock_ratio * speed_under(gpu, segment.limit_w, demanded_w)
    return math.floor(gpu.product.sm_clock_mhz * ratio + 0.5)


def temperature_celsius(gpu: SimulatedGpuState, t: float) -> int:
    """Return a temperature that follows the average power: 30 °C at 0 W, 75 °C at the peak."""
    return math.floor(30 + 45 * average_w(gpu, t) / gpu.product.peak_w + 0.5)


def memory_temperature_celsius(gpu: SimulatedGpuState, t: float) -> int:
    return temperature_celsius(gpu, t) + 8


def margin_celsius(gpu: SimulatedGpuState, t: float) -> int:
    """Return the distance to the temperature at which the GPU slows down."""
    return _SLOWDOWN_CELSIUS - temperature_celsius(gpu, t)


def fan_percent(gpu: SimulatedGpuState, t: float, fan: int) -> int:
    """Return as many percent as degrees, one less for each further fan."""
    return temperature_celsius(gpu, t) - fan


def capped_ns(gpu: SimulatedGpuState, t: float) -> int:
    """Return the driver's counter of time under the power cap since it was loaded."""
    _, at_s = _update(t, gpu.product.counter_period_s, gpu.counter_phase_s)
    return math.floor(max(0.0, cumulative_capped_s(gpu, at_s) - gpu.capped_at_load_s) * 1e9 + 0.5)


def pcie_bytes(gpu: SimulatedGpuState, t: float, direction: str) -> int:
    """Return transferred bytes, modelled in proportion to energy."""
    _, at_s = _update(t, gpu.product.counter_period_s, gpu.counter_phase_s)
    return math.floor(max(0.0, cumulative_j(gpu, at_s)) * _PCIE_BYTES_PER_JOULE[direction])


def process_percent(gpu: SimulatedGpuState, process: SimulatedProcess) -> int:
    """Return the process's utilization; processes that demand more than the whole GPU share it."""
    demanded = sum(other.utilization for other in gpu.processes)
    return math.floor(process.utilization / max(1.0, demanded) * 100 + 0.5)


def process_sample_us(gpu: SimulatedGpuState, t: float) -> int:
    """Return when the driver last sampled the processes."""
    _, at_s = _update(t, gpu.product.sensor_period_s, gpu.sensor_phase_s)
    return math.floor(at_s * 1e6)


def instance_percent(gpu: SimulatedGpuState, instance: SimulatedInstance) -> float:
    """Return the busy share of the instance's multiprocessors; the GPU has seven slices of them."""
    used = sum(
        process.utilization for process in gpu.processes if process.instance == instance.number
    )
    return min(1.0, used * 7 / instance.slices) * 100


def memory_used_bytes(gpu: SimulatedGpuState, instance: SimulatedInstance | None = None) -> int:
    return sum(
        process.memory_bytes
        for process in gpu.processes
        if instance is None or process.instance == instance.number
    )
