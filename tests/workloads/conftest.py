import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import simulation
from tests.fakes import openai_server as sse
from tests.fakes import podman as podman_service
from tests.fakes.openai_server import OpenAiServer
from tests.fakes.podman import IMAGE, Podman
from tests.fakes.run_api import RunApi, serving
from tests.fakes.web_api import serve_beside
from tests.forked import Nursery
from tests.workloads.jobs.llm_server_job import LlmServerJob

ROOT = Path(__file__).parents[2]
_OURS = ("WATTLINE_", "CUDA_", "NVIDIA_", "RANK", "LOCAL_RANK", "MASTER_", "SLURM_", "TORCHELASTIC_", "PYTHON")


NURSERY = Nursery("workloads.cli", "workloads.runner.runner", "workloads.plans.cli", "psutil", "rich.live", "yaml")


class Exporter:
    """Run API in memory, and programs that report to it."""

    def __init__(self, api: RunApi, address: str) -> None:
        self.api = api
        self.address = address

    @property
    def environment(self) -> dict[str, str]:
        return {**plain_environment(), "WATTLINE_EXPORTER": self.address}

    def start(self, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.Popen[str]:
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

    def python(self, *arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, cwd=cwd, **environment) as process:
            out, err = process.communicate(timeout=180)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def workloads(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return NURSERY.run(["-m", "workloads", *arguments], self.environment | environment)

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.workloads("run", "--", *command, **environment)


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    api = RunApi()
    with serving(api) as address:
        yield Exporter(api, address)


@pytest.fixture
def closed_address() -> str:
    """Address at which no server listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a Python script and returns its path."""

    def write_script(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write_script


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with podman_service.serving() as service:
        yield service


@pytest.fixture
def job(exporter, podman):
    """Return a function that runs a shell script with the job `container`, in Podman's image."""

    def run(script: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ("job", "container", "--host", podman.host, *options, IMAGE, "--", "sh", "-c", script)
        return exporter.workloads(*command, **environment)

    return run


@pytest.fixture
def cards(tmp_path):
    """Two simulated H200, the second of which somebody has limited to 500 W."""
    path = tmp_path / simulation.FILE_NAME
    simulation.create(path, simulation.make_gpus(2, simulation.PRODUCTS["H200"]), simulation.boottime())
    with simulation.Simulation.open(path) as opened:
        opened.set_limit(1, 500)
        yield opened


@pytest.fixture(params=["nvml", "state file"])
def bench(cards, tmp_path, request):
    yield from _bench(cards, tmp_path, through_nvml=request.param == "nvml")


@pytest.fixture
def driver(cards, tmp_path):
    """As `bench`, by the driver alone."""
    yield from _bench(cards, tmp_path, through_nvml=True)


def _bench(cards, tmp_path, *, through_nvml):
    from tests.workloads.plans.sweep_runs import Bench  # which needs what is above

    opened = Bench(cards, tmp_path / "state", through_nvml=through_nvml)
    yield opened
    opened.close()


_BEGIN = "import os, sys, time\nfrom workloads import client\n"


@pytest.fixture
def script(write):
    return lambda text: write(_BEGIN + textwrap.dedent(text))


@pytest.fixture
def server_job(exporter, tmp_path):
    return LlmServerJob(exporter, tmp_path / "out")


@pytest.fixture
def server():
    """Server with OpenAI's API that answers with two tokens; tests can set another script."""
    with serve_beside(OpenAiServer(script=lambda _: sse.answer(2, prompt=3))) as running:
        yield running
