"""Simulated NVML functions for energy, power, power limits and field values."""
# ruff: noqa: N802  # the functions' names are pynvml's

from __future__ import annotations

import time
from struct import Struct
from typing import Any

import pynvml

from wattline_exporter.simulation import (
    HOPPER,
    Fault,
    SimulatedGpuState,
    average_w,
    capped_ns,
    counter_j,
    instant_w,
    memory_temperature_celsius,
    pcie_bytes,
)
from wattline_exporter.simulation.nvml.library import Handle, Library, raise_nvml_error

_FIELD = Struct("=IIqqIIQ")
"""nvmlFieldValue_t: id, scope, timestamp, latency, value type, status, and the value. A field is
packed at once, since each attribute of pynvml's structure costs a Python call.
"""
_NEVER_ACTIVE_REASONS = (76, 269, 270, 271)
"""Fields of sync boost, thermal slowdown by software and by hardware, and power brake."""


class Power(Library):
    """Energy and power of a GPU."""

    def nvmlDeviceGetFieldValues(
        self,
        handle: Handle,
        fieldIds: list[int | tuple[int, int]],  # noqa: N803  # pynvml's
    ) -> Any:
        gpu, now = self._gpu(handle)
        has_fields = not gpu.faults & Fault.NO_FIELDS
        timestamp_us = time.time_ns() // 1_000
        packed = bytearray(len(fieldIds) * _FIELD.size)
        for number, requested in enumerate(fieldIds):
            field, scope = (requested, 0) if isinstance(requested, int) else requested
            typed = _typed_value(field, gpu, now) if has_fields and not scope else None
            kind, value = typed or (0, 0)
            status = pynvml.NVML_SUCCESS if typed else pynvml.NVML_ERROR_NOT_SUPPORTED
            _FIELD.pack_into(
                packed, number * _FIELD.size, field, scope, timestamp_us, 0, kind, status, value
            )
        return (pynvml.c_nvmlFieldValue_t * len(fieldIds)).from_buffer(packed)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Handle) -> int:
        gpu, now = self._gpu(handle)
        if gpu.faults & Fault.NO_COUNTER:
            raise_nvml_error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return round(counter_j(gpu, now) * 1e3)

    def nvmlDeviceGetPowerUsage(self, handle: Handle) -> int:
        gpu, now = self._gpu(handle)
        watts = average_w if gpu.product.averages_power_usage else instant_w
        return round(watts(gpu, now) * 1e3)

    def nvmlDeviceGetPowerManagementLimit(self, handle: Handle) -> int:
        return round(self._gpu(handle)[0].limit_w * 1e3)

    nvmlDeviceGetEnforcedPowerLimit = nvmlDeviceGetPowerManagementLimit  # noqa: N815  # nothing else limits a simulated GPU

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Handle) -> int:
        return round(self._gpu(handle)[0].product.limit_default_w * 1e3)

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Handle) -> list[int]:
        product = self._gpu(handle)[0].product
        return [round(product.limit_min_w * 1e3), round(product.limit_max_w * 1e3)]

    def nvmlDeviceSetPowerManagementLimit(self, handle: Handle, limit: int) -> None:
        gpu, _ = self._gpu(handle)
        if gpu.faults & Fault.FORBIDDEN:
            raise_nvml_error(pynvml.NVML_ERROR_NO_PERMISSION)
        try:
            self.simulation.set_limit(
                gpu.index, gpu.limit_w if gpu.faults & Fault.UNMOVED else limit / 1e3
            )
        except ValueError as error:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT) from error


def _typed_value(field: int, gpu: SimulatedGpuState, now: float) -> tuple[int, int] | None:
    """Return type and value of a field, or None where the GPU does not support it."""
    long = _value_of_64_bits(field, gpu, now)
    if long is not None:
        return pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, long
    small = _value_of_32_bits(field, gpu, now)
    return None if small is None else (pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, small)


def _value_of_64_bits(field: int, gpu: SimulatedGpuState, now: float) -> int | None:
    """Return the value of a field with 64 bits."""
    match field:
        case pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION if not gpu.faults & Fault.NO_COUNTER:
            return round(counter_j(gpu, now) * 1e3)
        case pynvml.NVML_FI_DEV_PERF_POLICY_POWER:
            return capped_ns(gpu, now)
        case pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES if gpu.product.architecture >= HOPPER:
            return pcie_bytes(gpu, now, "tx")
        case pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES if gpu.product.architecture >= HOPPER:
            return pcie_bytes(gpu, now, "rx")
        case _ if field in _NEVER_ACTIVE_REASONS:
            return 0
    return _errors(field, gpu) if gpu.product.is_of_data_centre else None


def _errors(field: int, gpu: SimulatedGpuState) -> int | None:
    match field:
        case pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL | pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
            return gpu.ecc_corrected
        case pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL | pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
            return gpu.ecc_uncorrected
    return None


def _value_of_32_bits(field: int, gpu: SimulatedGpuState, now: float) -> int | None:
    """Return the value of a field with 32 bits."""
    match field:
        case pynvml.NVML_FI_DEV_POWER_AVERAGE if not gpu.faults & Fault.NO_AVERAGE:
            return round(average_w(gpu, now) * 1e3)
        case pynvml.NVML_FI_DEV_POWER_INSTANT:
            return round(instant_w(gpu, now) * 1e3)
        case pynvml.NVML_FI_DEV_MEMORY_TEMP if gpu.product.is_of_data_centre:
            return memory_temperature_celsius(gpu, now)
    return None
