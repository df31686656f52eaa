"""Peers, installed in a separate environment on first use."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.bench.node import Node
from tests.bench.program import Program
from tests.bench.wattline import Window, exported_gpus, free_port

VERSIONS = {
    "nvitop-exporter": "1.7.2",
    "zeus": "0.16.0",
    "codecarbon": "3.3.2",
    "prometheus-api-client[dataframe,numpy]": "0.7.2",
}
_FOLDER = Path(__file__).parents[2] / "build" / "bench-venv"
_SCRIPTS = Path(__file__).with_name("peers")
_READY_WITHIN_S = 30.0


class NoPeersError(Exception):
    """Peers cannot be installed; the text states the cause in one line."""


def install() -> Path:
    """Return the folder of the peers' programs. Raise NoPeersError."""
    expected = [f"{name}=={version}" for name, version in VERSIONS.items()]
    installed = _FOLDER / "installed.txt"
    if not installed.exists() or installed.read_text().split() != expected:
        _run([sys.executable, "-m", "venv", "--clear", str(_FOLDER)])
        _run(
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


def _run(command: list[str]) -> None:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        last_line = (completed.stderr or completed.stdout).strip().splitlines() or ["no output"]
        raise NoPeersError(
            f"no peers: {' '.join(command[:3])} ended with {completed.returncode}: {last_line[-1]}"
        )


def start_nvitop(node: Node, programs: Path) -> tuple[Program, int]:
    """Start nvitop-exporter at its default interval of 1 s and return it with its port; its context
    stops it.
    """
    port = free_port()
    command: list[str | Path] = [programs / "nvitop-exporter", "--port", str(port)]
    return Program("nvitop-exporter", command, node.environment, node.folder), port


def until_nvitop_is_ready(program: Program, port: int) -> None:
    program.until(lambda: exported_gpus(port, b"gpu_power_usage_W{") > 0, _READY_WITHIN_S)


def start_windows(node: Node, programs: Path, script: str, windows: int, seconds: float) -> Program:
    """Start a script of `peers/` on the GPUs of `node`."""
    tools = node.folder / "tools"
    tools.mkdir(exist_ok=True)
    smi = (
        tools / "nvidia-smi"
    )  # codecarbon looks for GPUs only if this program exists; it does not call it
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    environment = {**node.environment, "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin"}
    options = ["--windows", str(windows), "--seconds", f"{seconds:g}"]
    command: list[str | Path] = [programs / "python", _SCRIPTS / f"{script}.py", *options]
    return Program(script, command, environment, node.folder)


def reported_windows(program: Program) -> Iterator[tuple[str, Window]]:
    """Yield method and window for each line of a script; skip other output of the peer."""
    for line in program.lines():
        if not line.startswith('{"method"'):
            continue
        report = json.loads(line)
        joules = {int(gpu): float(joules) for gpu, joules in report["joules"].items()}
        yield (
            report["method"],
            Window(report["begin_s"], report["end_s"], joules, {}, report["begin_took_s"]),
        )
