"""Meters that the examination knows, and the environment in which those of other projects are
installed.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from tests.exam.window import Meter

ROOT = Path(__file__).parents[2]
_SCRIPTS = Path(__file__).with_name("meters")
_FOLDER = ROOT / "build" / "exam-venv"
NVML = "nvidia-ml-py"
VERSIONS = {
    NVML: "13.615.71",
    "zeus": "0.16.0",
    "codecarbon": "3.3.2",
    "pyJoules": "0.5.1",
    "nvitop": "1.7.2",
    "gpustat": "1.1.1",
    "pandas": "3.1.1",
}
"""pandas is a dependency of zeus and codecarbon."""


class NoMetersError(Exception):
    """Unknown meter, or meters of other projects that cannot be installed; the text states the
    cause in one line.
    """


@dataclass(frozen=True, slots=True)
class KnownMeter:
    """Meter of the table; `package` is empty for Wattline."""

    name: str
    script: str
    package: str
    method: str

    @property
    def installed_version(self) -> str:
        return VERSIONS[self.package] if self.package else version("wattline")


METERS = {
    meter.name: meter
    for meter in (
        KnownMeter(
            "wattline", "wattline_meter", "", "a run of the exporter, started some seconds before"
        ),
        KnownMeter(
            "zeus",
            "zeus_window",
            "zeus",
            "`ZeusMonitor`: energy counter; refuses a recent GPU without one",
        ),
        KnownMeter(
            "codecarbon",
            "codecarbon_tracker",
            "codecarbon",
            "`OfflineEmissionsTracker`; reports the sum of its GPUs",
        ),
        KnownMeter("pyjoules", "pyjoules_meter", "pyJoules", "`EnergyMeter`: energy counter"),
        KnownMeter(
            "nvitop",
            "nvitop_collector",
            "nvitop",
            "mean power of `ResourceMetricCollector` × time; claims no energy",
        ),
        KnownMeter(
            "gpustat", "gpustat_polling", "gpustat", "mean power at 1 Hz × time; claims no energy"
        ),
        KnownMeter("counter", "counter", NVML, "script: energy counter at both ends"),
        KnownMeter(
            "polling", "polling", NVML, "script: mean of `nvmlDeviceGetPowerUsage` at 1 Hz × time"
        ),
        KnownMeter(
            "dcgm-style",
            "dcgm_style",
            NVML,
            "script: energy counter cached once a second, as DCGM watches do",
        ),
    )
}


def meter(name_or_command: str, folder: Path) -> Meter:
    """Return a known meter, or the command itself. Raise NoMetersError."""
    known = METERS.get(name_or_command)
    if known is None:
        command = tuple(shlex.split(name_or_command))
        if not command or shutil.which(command[0]) is None:
            names = ", ".join(METERS)
            raise NoMetersError(
                f"exam: unknown meter {name_or_command!r}; use one of {names}, or a command"
            )
        return Meter(command, {})
    if not known.package:
        return Meter(
            (sys.executable, "-P", "-m", f"tests.exam.{known.script}"), {"PYTHONPATH": str(ROOT)}
        )
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    smi = (
        tools / "nvidia-smi"
    )  # codecarbon looks for GPUs only if this program exists; it does not call it
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    path = f"{tools}:/usr/local/bin:/usr/bin:/bin"
    return Meter((str(_install() / "python"), str(_SCRIPTS / f"{known.script}.py")), {"PATH": path})


def _install() -> Path:
    """Return the folder of programs of an environment with the meters, installed on first use."""
    expected = [f"{name}=={version}" for name, version in VERSIONS.items()]
    installed = _FOLDER / "installed.txt"
    if not installed.exists() or installed.read_text().split() != expected:
        _call([sys.executable, "-m", "venv", "--clear", str(_FOLDER)])
        _call(
            [
                str(_FOLDER / "bin" / "pip"),
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *expected,
            ]
        )
        installed.write_text("\n".join(expected))
    return _FOLDER / "bin"


def _call(command: list[str]) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        last_line = (completed.stderr or completed.stdout).strip().splitlines() or ["no output"]
        raise NoMetersError(
            f"cannot install the other meters: {' '.join(command[:3])}: {last_line[-1]}"
        )
