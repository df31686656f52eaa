"""Sweep processes on simulated GPUs, through the fake driver or the state file."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import psutil

from tests.fakes import nvml
from tests.workloads.programs import NURSERY, plain_environment
from wattline_exporter.simulation import Simulation

WITHIN_S = 60.0
_HOLDER = Path(__file__).with_name("caps_holder.py")


def power_steps_w(simulation: Simulation, i: int) -> list[float]:
    """Return the consecutive powers of a GPU from its own record, independent of the time of the
    call.
    """
    record = [simulation.power_w(i, segment.begin_s) for segment in simulation.gpus[i].segments]
    return [power_w for power_w, _ in groupby(record)]


class SweepProcess:
    """Running process of `caps_holder`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def advance(self, line: str = "") -> str:
        """Send a line; return the next status: `ready` after a cap is set, `left` at the end, empty
        after a failure.
        """
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.read_status()

    def read_status(self) -> str:
        return self.process.stdout.readline().strip()

    @property
    def watchdog(self) -> psutil.Process:
        (watchdog,) = psutil.Process(self.process.pid).children()
        return watchdog

    def wait(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, err


class CapsTestbed:
    """Simulated GPUs and the sweeps on them, through the fake driver (`through_nvml`) or the state
    file.
    """

    def __init__(self, simulation: Simulation, folder: Path, *, through_nvml: bool) -> None:
        self.simulation = simulation
        self.through_nvml = through_nvml
        self.journals = folder / "wattline" / "caps"
        self._environment = {**plain_environment(), "XDG_STATE_HOME": str(folder)}
        if through_nvml:
            self._environment |= nvml.environment(simulation.path)
        else:
            self._environment["SIMULATED_GPUS"] = str(simulation.path)
        self._started: list[subprocess.Popen[str]] = []

    def limits_w(self) -> list[float]:
        return [gpu.limit_w for gpu in self.simulation.gpus]

    def clocks_mhz(self) -> list[int]:
        return [gpu.locked_clock_mhz for gpu in self.simulation.gpus]

    def journal(self) -> dict:
        (path,) = self.journals.glob("*.json")
        return json.loads(path.read_text())

    def rewrite_journal(self, **changes: object) -> None:
        (path,) = self.journals.glob("*.json")
        content = json.loads(path.read_text())
        content["holder"] |= changes
        path.write_text(json.dumps(content))

    def has_journal(self) -> bool:
        return any(self.journals.glob("*.json"))

    def start_sweep(self, *arguments: str, **environment: str) -> SweepProcess:
        process = subprocess.Popen(
            [sys.executable, "-P", _HOLDER, *arguments],
            env=self._environment | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return SweepProcess(process)

    def start_capped_sweep(self, *arguments: str) -> SweepProcess:
        """Start a sweep and wait until it has set its first cap."""
        start_sweep = self.start_sweep(*arguments)
        start_sweep.read_status()
        start_sweep.advance()
        return start_sweep

    def caps(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        if arguments[0] == "show" and not self.through_nvml:
            arguments = (*arguments, "--simulation", str(self.simulation.path))
        return self.python("-m", "wattline_workloads", "caps", *arguments)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return NURSERY.run(arguments, self._environment, timeout_s=WITHIN_S)

    def kill_both(self, start_sweep: SweepProcess) -> None:
        """Kill the watchdog first, since it would restore the limits after the end of the
        holder.
        """
        start_sweep.watchdog.kill()
        start_sweep.process.kill()
        start_sweep.wait()

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
