"""Power limits and clock locks of simulated GPUs, in their state file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporter.simulation import Fault, SimulatedGpuState, Simulation, StateFileError, clocks_mhz, sm_clock_mhz
from workloads.caps.gpu_set import NOT_ALLOWED, CapsError, NotAllowedError, PowerLimitRange


class SimulatedGpuSet:
    """Simulated GPUs by UUID or index; None: all of the state file."""

    def __init__(self, path: Path, gpus: Sequence[str] | None) -> None:
        self.simulation: str | None = str(path.absolute())
        with _as_caps_error():
            self._file = Simulation.open(path)
        here = self._file.gpus
        unknown = [wanted for wanted in gpus or () if not any(wanted in {gpu.uuid, str(gpu.index)} for gpu in here)]
        if unknown:
            self._file.close()
            raise CapsError(
                f"GPU {unknown[0]} is not one of the {len(here)} GPUs simulated in {path}; choose others with --gpus"
            )
        chosen = [gpu for gpu in here if gpus is None or {gpu.uuid, str(gpu.index)} & set(gpus)]
        self._index = {gpu.uuid: gpu.index for gpu in chosen}
        self.uuids = tuple(self._index)

    def name(self, uuid: str) -> str:
        gpu = self._gpu(uuid)
        return f"GPU {gpu.index} ({gpu.product.name})"

    def power(self, uuid: str) -> PowerLimitRange:
        gpu = self._responding(uuid)
        product = gpu.product
        return PowerLimitRange(product.limit_min_w, product.limit_max_w, product.limit_default_w, gpu.limit_w)

    def enforced_w(self, uuid: str) -> float:
        return self._responding(uuid).limit_w

    def set_power_limit(self, uuid: str, watts: float) -> None:
        gpu = self._settable(uuid)
        if not gpu.faults & Fault.UNMOVED:
            with _as_caps_error():
                self._file.set_limit(gpu.index, watts)

    def sm_clocks(self, uuid: str) -> tuple[float, ...]:
        return tuple(mhz * 1e6 for mhz in clocks_mhz(self._responding(uuid)))

    def sm_clock(self, uuid: str) -> float:
        return sm_clock_mhz(self._responding(uuid), self._file.now()) * 1e6

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        gpu = self._settable(uuid)
        if not gpu.faults & Fault.UNMOVED:
            with _as_caps_error():
                self._file.lock_clock(gpu.index, None if hertz is None else round(hertz / 1e6))

    def close(self) -> None:
        self._file.close()

    def _gpu(self, uuid: str) -> SimulatedGpuState:
        return self._file.gpus[self._index[uuid]]

    def _responding(self, uuid: str) -> SimulatedGpuState:
        gpu = self._gpu(uuid)
        if gpu.faults & (Fault.LOST | Fault.UNBOUND):
            raise CapsError(f"{self.name(uuid)} is lost; reset it, or exclude it with --gpus")
        return gpu

    def _settable(self, uuid: str) -> SimulatedGpuState:
        gpu = self._responding(uuid)
        if gpu.faults & Fault.FORBIDDEN:
            raise NotAllowedError(f"cannot set {self.name(uuid)}: {NOT_ALLOWED}")
        return gpu


@contextlib.contextmanager
def _as_caps_error() -> Iterator[None]:
    try:
        yield
    except (StateFileError, ValueError) as error:
        raise CapsError(str(error)) from error
