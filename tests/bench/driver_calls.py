"""C program with the driver calls of the exporter's NVML worker: the least CPU that its
measurements can take.

`python -m tests.bench.driver_calls` prints the calls of one GPU, as the worker's code makes them in
steady operation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pynvml

from tests.bench.node import GPUS, Node
from tests.bench.program import Program, ProgramError
from wattline_exporter.polling.hub import PROCESSES_SHARED_S
from wattline_exporter.sensors.nvml.driver import Nvml
from wattline_exporter.sensors.nvml.polling_threads import READINGS_EVERY_S

NAME = "C program with the same driver calls"
_SOURCE = Path(__file__).with_suffix(".c")
_STAGES = {"poll": "poll", "readings": "readings", "processes": "lists"}
_ROUNDS = 4
"""Rounds until calls that fail are no longer repeated and slower values are not due."""


class _Recorder:
    """pynvml that notes its calls of GPUs."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)
        if name == "nvmlLib":
            raise AttributeError(name)  # calls go through the functions, where they are noted
        if not name.startswith("nvmlDevice"):
            return value

        def noted(*arguments: Any) -> Any:
            self.calls.append((name, arguments[1:]))
            return value(*arguments)

        return noted


def main() -> None:
    recorder = _Recorder()
    nvml = Nvml(recorder)
    nvml.open()
    gpu = nvml.gpu(0)
    for number in range(_ROUNDS):
        for method, stage in _STAGES.items():
            recorder.calls.clear()
            result = getattr(gpu, method)()
            if method == "readings":
                list(result)
            if number == _ROUNDS - 1:
                for name, arguments in recorder.calls:
                    print(
                        stage,
                        name,
                        *(arguments[0] if name == "nvmlDeviceGetFieldValues" else arguments),
                    )
        time.sleep(READINGS_EVERY_S)


def start(node: Node, period_s: float) -> Program:
    """Compile and start the program on the GPUs of `node`; its context stops it. Raise
    ProgramError.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise ProgramError(f"no {NAME}: no C compiler; install one: apt install gcc")
    program, calls = node.folder / "driver_calls", node.folder / "driver_calls.txt"
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Wextra", "-o", program, _SOURCE, "-ldl", "-lm"], check=True
    )
    recorded = subprocess.run(
        [sys.executable, "-P", "-m", "tests.bench.driver_calls"],
        env={**os.environ, **node.environment, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    if recorded.returncode:
        raise ProgramError(f"no {NAME}: {recorded.stderr.strip().splitlines()[-1]}")
    calls.write_text(recorded.stdout)
    rates = [str(each) for each in (GPUS, period_s, READINGS_EVERY_S, PROCESSES_SHARED_S)]
    started = Program("driver_calls", [program, calls, *rates], node.environment, node.folder)
    started.until(lambda: "ready" in started.lines(), 10.0)
    return started


if __name__ == "__main__":
    main()
