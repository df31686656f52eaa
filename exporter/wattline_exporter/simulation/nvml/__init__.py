"""Simulated GPUs with the functions of pynvml, which code for pynvml can use unchanged.

Functions, values, faults and errors match the tests' C library. Constants, structs and exceptions
are pynvml's.
"""

from __future__ import annotations

from wattline_exporter.simulation.nvml.activity import Activity, SimulatedMig, SimulatedProcesses
from wattline_exporter.simulation.nvml.library import Events, Handle, Identity
from wattline_exporter.simulation.nvml.power import Power

__all__ = ["Handle", "SimulatedNvml"]


class SimulatedNvml(Identity, Power, Activity, SimulatedProcesses, SimulatedMig, Events):
    """Replacement for the module `pynvml`. Raises StateFileError where `path` is not a simulation's
    state file.

    While the driver is unloaded, nvmlInit fails with DRIVER_NOT_LOADED. In a process that had it
    open, all calls fail with UNINITIALIZED, even after the driver is loaded again, until it
    initializes NVML again.
    """
