"""Joules of the requests of a real vLLM, whose engine drives a simulated GPU."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest

from tests.daemon import daemon
from tests.fakes.tiny_llama import save_llama
from tests.polling import eventually
from tests.servers import free_port
from tests.workloads.programs import plain_environment
from tests.workloads.wattline.integrations import test_vllm as server
from wattline_exporter.simulation import clock_s

pytestmark = server.pytestmark
LOAD_S = 12.0
OPTIONS = ("--simulate", "1xH200", "--runs.discover", "user", "--no-collector.host")


@contextmanager
def vllm(exporter, simulation, folder):
    """Start a server whose engine is a process on the simulated GPU, before it is ready; yield
    address and pid.
    """
    save_llama(folder / "tiny")
    port = free_port()
    module = "vllm.entrypoints.openai.api_server"
    command = [server.PYTHON, "-m", module, "--model", str(folder / "tiny"), "--port", str(port)]
    environment = plain_environment() | server.CPU | {"WATTLINE_EXPORTER": exporter.url}
    log, address = folder / "vllm.log", f"http://127.0.0.1:{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *server.OPTIONS.split()],
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            engine = eventually(
                lambda: engine_of(process.pid), "an engine", log.read_text, server.READY_WITHIN_S
            )
            simulation.drive(0, 0.05, engine, 1 << 30)
            eventually(
                lambda: server.is_ready(address, process),
                "vLLM",
                log.read_text,
                server.READY_WITHIN_S,
            )
            yield address, engine, log
        finally:
            process.terminate()
            process.wait(60)


def engine_of(pid):
    found = [
        child.pid
        for child in psutil.Process(pid).children(recursive=True)
        if "EngineCore" in child.name()
    ]
    return found[0] if found else None


def test_vllm_requests_of_discovered_run_add_up_to_energy_of_gpu(tmp_path):
    with (
        daemon(tmp_path, *OPTIONS) as exporter,
        exporter.simulation() as simulation,
        vllm(exporter, simulation, tmp_path) as (address, engine, log),
    ):
        eventually(
            lambda: "are measured as run user-" in log.read_text(),
            "the discovered run",
            log.read_text,
        )
        simulation.drive(0, 0.7, engine, 1 << 30)
        start_s = clock_s()
        end_s = time.monotonic() + LOAD_S

        def send(_):
            answers = []
            while time.monotonic() < end_s:
                answers.append(server.ask(address, "a prompt", 200, stream=True))
            return answers

        with ThreadPoolExecutor(2) as pool:
            answers = [answer for answered in pool.map(send, range(2)) for answer in answered]
        truth_j = simulation.energy_j(0, start_s, clock_s())
        simulation.drive(0, 0.05, engine, 1 << 30)
        requests = [final(exporter, request_id) for request_id, *_ in answers]

    total_j = sum(one["energy_joules"] for one in requests)
    print(f"{len(requests)} requests: {total_j:.1f} J of {truth_j:.1f} J")
    assert len(requests) > 4
    assert total_j == pytest.approx(truth_j, rel=0.04)  # half a slot of 0.25 s at each edge of 12 s
    assert {usage["completion_tokens"] for _, usage, *_ in answers} == {200}


def final(exporter, request_id):
    def answer():
        status, body = exporter.get(f"/api/v1/requests/{request_id}")
        return body if status == 200 and body["state"] == "final" else None

    return eventually(answer, f"the energy of {request_id}", exporter.log, 90.0)
