"""Clocks set by a test, with steps of the wall clock and suspension, for chosen processes only."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("clock") / "clock.c"
_BUILDS = Path(__file__).parents[2] / "build" / "fakes"
_FLAGS = (
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-std=c11",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
)
_SHIFTS = struct.Struct("=2q")


def library() -> Path:
    """Return the library to preload, built once for each content of its source."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode() + SOURCE.read_bytes())
    built = _BUILDS / digest.hexdigest()[:16] / "libclock.so"
    if not built.exists():
        compiler = shutil.which("cc")
        if compiler is None:
            raise RuntimeError(
                "the shifted clock is built from C; install a C compiler: apt install gcc"
            )
        built.parent.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(
            f".{os.getpid()}"
        )  # renamed when complete: others may build it, too
        subprocess.run([compiler, *_FLAGS, "-o", unfinished, SOURCE, "-ldl"], check=True)
        unfinished.replace(built)
    return built


class Clock:
    """Wall clock and CLOCK_BOOTTIME of processes with `environment()`, and of their children."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(_SHIFTS.pack(0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SHIFTS.size)

    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(library()), "WATTLINE_TEST_CLOCK": str(self._path)}

    def step(self, seconds: float) -> None:
        """Set the wall clock forward."""
        self._shift(seconds, 0.0)

    def suspend(self, seconds: float) -> None:
        """Suspend the machine: only CLOCK_MONOTONIC stops."""
        self._shift(seconds, seconds)

    def time(self) -> float:
        return time.time() + self._shifts_ns()[0] / 1e9

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) + self._shifts_ns()[1] / 1e9

    def close(self) -> None:
        self._map.close()

    def _shifts_ns(self) -> tuple[int, int]:
        realtime_ns, boottime_ns = _SHIFTS.unpack(self._map[:])
        return realtime_ns, boottime_ns

    def _shift(self, realtime_s: float, boottime_s: float) -> None:
        realtime_ns, boottime_ns = self._shifts_ns()
        self._map[:] = _SHIFTS.pack(
            realtime_ns + round(realtime_s * 1e9), boottime_ns + round(boottime_s * 1e9)
        )
