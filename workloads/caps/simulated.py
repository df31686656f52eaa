"""Power limits and locked clocks of simulated cards, in their state file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporter.simulation import Fault, SimulatedGpuState, Simulation, StateFileError, clocks_mhz, sm_clock_mhz
from workloads.caps.gpu_set import NOT_ALLOWED, CapsError, NotAllowedError, PowerLimitRange


class SimulatedGpuSet:
    def __init__(self, path: Path, gpus: Sequence[str] | None) -> None:
        self.simulation: str | None = str(path.absolute())
        with _said():
            self._file = Simulation.open(path)
        here = self._file.gpus
        unknown = [asked for asked in gpus or () if not any(asked in {gpu.uuid, str(gpu.index)} for gpu in here)]
        if unknown:
            self._file.close()
            raise CapsError(
                f"GPU {unknown[0]} is not one of the {len(here)} simulated in {path}; give others with --gpus"
            )
        chosen = [gpu for gpu in here if gpus is None or {gpu.uuid, str(gpu.index)} & set(gpus)]
        self._index = {gpu.uuid: gpu.index for gpu in chosen}
        self.uuids = tuple(self._index)

    def name(self, uuid: str) -> str:
        gpu = self._gpu(uuid)
        return f"GPU {gpu.index} ({gpu.product.name})"

    def power(self, uuid: str) -> PowerLimitRange:
        gpu = self._answering(uuid)
        make = gpu.product
        return PowerLimitRange(make.limit_min_w, make.limit_max_w, make.limit_default_w, gpu.limit_w)

    def enforced_w(self, uuid: str) -> float:
        return self._answering(uuid).limit_w

    def set_power_limit(self, uuid: str, watts: float) -> None:
        gpu = self._settable(uuid)
        if not gpu.faults & Fault.UNMOVED:
            with _said():
                self._file.set_limit(gpu.index, watts)

    def sm_clocks(self, uuid: str) -> tuple[float, ...]:
        return tuple(mhz * 1e6 for mhz in clocks_mhz(self._answering(uuid)))

    def sm_clock(self, uuid: str) -> float:
        return sm_clock_mhz(self._answering(uuid), self._file.now()) * 1e6

    def lock_sm_clock(self, uuid: str, hertz: float | None) -> None:
        gpu = self._settable(uuid)
        if not gpu.faults & Fault.UNMOVED:
            with _said():
                self._file.lock_clock(gpu.index, None if hertz is None else round(hertz / 1e6))

    def close(self) -> None:
        self._file.close()

    def _gpu(self, uuid: str) -> SimulatedGpuState:
        return self._file.gpus[self._index[uuid]]

    def _answering(self, uuid: str) -> SimulatedGpuState:
        gpu = self._gpu(uuid)
        if gpu.faults & (Fault.LOST | Fault.UNBOUND):
            raise CapsError(f"{self.name(uuid)} is lost; reset it, or leave it out with --gpus")
        return gpu

    def _settable(self, uuid: str) -> SimulatedGpuState:
        gpu = self._answering(uuid)
        if gpu.faults & Fault.FORBIDDEN:
            raise NotAllowedError(f"{self.name(uuid)} may not be set: {NOT_ALLOWED}")
        return gpu


@contextlib.contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except (StateFileError, ValueError) as error:
        raise CapsError(str(error)) from error
