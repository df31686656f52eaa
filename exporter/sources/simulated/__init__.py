"""The simulated GPUs behind pynvml's functions: what is written for pynvml runs on it unchanged.

The same functions as the tests' C library, with the same answers, faults and errors; constants, structs and exceptions
are pynvml's own.
"""

from __future__ import annotations

from exporter.sources.simulated.activity import Activity, Processes
from exporter.sources.simulated.library import Card, Events, Handle
from exporter.sources.simulated.mig import Mig
from exporter.sources.simulated.power import Power

__all__ = ["Handle", "SimulatedNvml"]


class SimulatedNvml(Card, Power, Activity, Processes, Mig, Events):
    """Stands where the module `pynvml` stands. Raises StateFileError where `path` is no simulation's state file.

    A driver that was unloaded makes nvmlInit fail with DRIVER_NOT_LOADED. To a process that had it open all calls fail
    with UNINITIALIZED, also after the driver is back, until it initializes again: its connection died with the driver.
    """
