"""Sweeps as real processes, on simulated cards or on the loadable fake driver; both are one state file."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import psutil

from exporter.simulation import Simulation
from tests.fakes import nvml
from tests.workloads.conftest import NURSERY, plain_environment

WITHIN_S = 60.0
_HOLDER = Path(__file__).parents[1] / "caps_holder.py"


def drawn_w(simulation: Simulation, i: int) -> list[float]:
    """The powers of a card, one after the other, as its own record has them: no one need look at the right moment."""
    record = [simulation.power_w(i, segment.begin_s) for segment in simulation.gpus[i].segments]
    return [power_w for power_w, _ in groupby(record)]


class Sweep:
    """A running one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def go_on(self, line: str = "") -> str:
        """What it says next: `ready` once the next cap stands, `left` at the end, nothing where it failed."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.heard()

    def heard(self) -> str:
        return self.process.stdout.readline().strip()

    @property
    def watchdog(self) -> psutil.Process:
        (watchdog,) = psutil.Process(self.process.pid).children()
        return watchdog

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=WITHIN_S)
        return self.process.returncode, err


class Bench:
    """Cards, and what is done with them. `through_nvml`: by the fake driver, else by the state file."""

    def __init__(self, simulation: Simulation, folder: Path, *, through_nvml: bool) -> None:
        self.simulation = simulation
        self.through_nvml = through_nvml
        self.journals = folder / "wattline" / "caps"
        self._environment = {**plain_environment(), "XDG_STATE_HOME": str(folder)}
        if through_nvml:
            self._environment |= nvml.environment(simulation.path)
        else:
            self._environment["SIMULATED_CARDS"] = str(simulation.path)
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

    def sweep(self, *arguments: str, **environment: str) -> Sweep:
        process = subprocess.Popen(
            [sys.executable, _HOLDER, *arguments],
            env=self._environment | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return Sweep(process)

    def capped(self, *arguments: str) -> Sweep:
        """One that has set its first cap."""
        sweep = self.sweep(*arguments)
        sweep.heard()
        sweep.go_on()
        return sweep

    def caps(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        if arguments[0] == "show" and not self.through_nvml:
            arguments = (*arguments, "--simulation", str(self.simulation.path))
        return self.python("-m", "workloads", "caps", *arguments)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return NURSERY.run(arguments, self._environment, timeout_s=WITHIN_S)

    def kill_both(self, sweep: Sweep) -> None:
        """Kill the watchdog first, since it would restore the limits after the end of the holder."""
        sweep.watchdog.kill()
        sweep.process.kill()
        sweep.end()

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()
