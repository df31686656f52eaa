"""Programs of users and of Wattline, started against a run API in memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.fakes.run_api import RunApi
from tests.fork_server import ForkServer

ROOT = Path(__file__).parents[2]
NO_TORCH = {"PYTHONPATH": str(ROOT / "tests/fakes/no_torch")}
"""Variables of a job that uses NumPy instead of torch, whose import takes two seconds."""
_LAUNCHERS = ("RANK", "LOCAL_RANK", "MASTER_", "SLURM_", "TORCHELASTIC_")
_REMOVED_PREFIXES = ("WATTLINE_", "CUDA_", "NVIDIA_", "PYTHON", *_LAUNCHERS)
NURSERY = ForkServer(
    "wattline_workloads.cli",
    "wattline_workloads.runner.runner",
    "wattline_workloads.plans.cli",
    "psutil",
    "rich.live",
    "yaml",
)

TORCH_NURSERY = ForkServer(
    "torch", "transformers.models.resnet.modeling_resnet", "wattline_workloads.jobs.llm_train"
)
"""For programs that import torch, which takes seconds."""


class Exporter:
    """Run API in memory, and programs that report to it."""

    def __init__(self, api: RunApi, address: str) -> None:
        self.api = api
        self.address = address

    @property
    def environment(self) -> dict[str, str]:
        return {**plain_environment(), "WATTLINE_EXPORTER": self.address}

    def start(
        self, *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env=self.environment | environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def python(
        self, *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, cwd=cwd, **environment) as process:
            out, err = process.communicate(timeout=180)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def workloads(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return NURSERY.run(["-m", "wattline_workloads", *arguments], self.environment | environment)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.workloads("run", "--", *command, **environment)


def plain_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if not name.startswith(_REMOVED_PREFIXES)
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
