import subprocess
import textwrap
from collections.abc import Iterator

import pytest

from tests.fakes import openai_server as sse
from tests.fakes import podman as podman_service
from tests.fakes.openai_server import OpenAiServer
from tests.fakes.podman import IMAGE, Podman
from tests.fakes.run_api import RunApi, run_api_server
from tests.fakes.web_api import serve_in_thread
from tests.workloads.caps_testbed import CapsTestbed
from tests.workloads.jobs.llm_server_job import LlmServerJob
from tests.workloads.programs import Exporter, free_port
from wattline_exporter import simulation


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    api = RunApi()
    with run_api_server(api) as address:
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
    with podman_service.podman_service() as service:
        yield service


@pytest.fixture
def job(exporter, podman):
    """Return a function that runs a shell script with the job `container`, in Podman's image."""

    def run(script: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = (
            "job",
            "container",
            "--host",
            podman.host,
            *options,
            IMAGE,
            "--",
            "sh",
            "-c",
            script,
        )
        return exporter.workloads(*command, **environment)

    return run


@pytest.fixture
def limited_gpus(tmp_path):
    """Two simulated H200; a user has limited the second to 500 W."""
    path = tmp_path / simulation.FILE_NAME
    simulation.create(
        path, simulation.make_gpus(2, simulation.PRODUCTS["H200"]), simulation.clock_s()
    )
    with simulation.Simulation.open(path) as opened:
        opened.set_limit(1, 500)
        yield opened


@pytest.fixture(params=["nvml", "state file"])
def testbed(limited_gpus, tmp_path, request):
    yield from _testbed(limited_gpus, tmp_path, through_nvml=request.param == "nvml")


@pytest.fixture
def nvml_testbed(limited_gpus, tmp_path):
    """Testbed through the fake driver only."""
    yield from _testbed(limited_gpus, tmp_path, through_nvml=True)


def _testbed(limited_gpus, tmp_path, *, through_nvml):
    opened = CapsTestbed(limited_gpus, tmp_path / "state", through_nvml=through_nvml)
    yield opened
    opened.close()


_BEGIN = "import os, sys, time\nimport wattline\n"


@pytest.fixture
def script(write):
    return lambda text: write(_BEGIN + textwrap.dedent(text))


@pytest.fixture
def server_job(exporter, tmp_path):
    return LlmServerJob(exporter, tmp_path / "out")


@pytest.fixture
def server():
    """Server with OpenAI's API that answers with two tokens; tests can set another script."""
    with serve_in_thread(OpenAiServer(script=lambda _: sse.answer(2, prompt=3))) as running:
        yield running
