"""GPUs through NVML: the module `pynvml` of the package nvidia-ml-py, or another object with its functions.

Every call may hang on a failing GPU, so these modules run in the NVML worker process.
"""

from exporter.sources.nvml.card import driver_is_gone, is_unloaded, nvml_source_error
from exporter.sources.nvml.driver import Nvml, XidWatch, bound_gpus
from exporter.sources.nvml.gpu import NvmlGpu

__all__ = ["Nvml", "NvmlGpu", "XidWatch", "bound_gpus", "driver_is_gone", "is_unloaded", "nvml_source_error"]
