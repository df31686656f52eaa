"""GPUs through NVML: the module `pynvml` of the package nvidia-ml-py, or anything that offers the same functions.

Every call may hang for ever on a sick card, so this runs in the child process of `sampler.py`, one thread a GPU.
"""

from exporter.sources.nvml.driver import Nvml, bound_gpus
from exporter.sources.nvml.errors import describe, driver_is_gone, is_unloaded
from exporter.sources.nvml.gpu import NvmlGpu
from exporter.sources.nvml.xid import XidWatch

__all__ = ["Nvml", "NvmlGpu", "XidWatch", "bound_gpus", "describe", "driver_is_gone", "is_unloaded"]
