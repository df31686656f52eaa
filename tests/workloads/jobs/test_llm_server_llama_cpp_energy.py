"""Joules of the requests of real llama.cpp servers, whose processes drive a simulated GPU."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import requests

from tests.daemon import begin, daemon
from tests.exporter.requests.calls import accepted
from tests.polling import eventually
from tests.workloads.jobs.test_llm_server_llama_cpp import start
from wattline_exporter.simulation import clock_s

__all__ = ["start"]  # a fixture

OPTIONS = (
    "--simulate",
    "1xH200",
    "--no-collector.host",
    "--no-collector.rapl",
    "--requests.window",
    "10s",
)
LOAD_S, CLIENTS, TOKENS = 12.0, 2, 500


def ask(exporter, address, run_id):
    """Send one request, report it, and return it."""
    body = {"prompt": "a prompt", "n_predict": TOKENS, "ignore_eos": True}
    started_at = time.time()
    answer = requests.post(f"{address}/completion", json=body, timeout=60).json()
    request = {
        "id": f"{run_id}-{started_at}",
        "started_at": started_at,
        "first_token_at": started_at + answer["timings"]["prompt_ms"] / 1_000,
        "ended_at": time.time(),
        "prompt_tokens": answer["tokens_evaluated"],
        "generated_tokens": answer["tokens_predicted"],
    }
    accepted(exporter, run_id, request)
    return request


def serve(exporter, addresses):
    """Send requests to all servers at once for LOAD_S; return those of each run."""
    end_s = time.monotonic() + LOAD_S

    def send(place):
        sent = []
        while time.monotonic() < end_s:
            sent.append(ask(exporter, addresses[place], place))
        return sent

    with ThreadPoolExecutor(CLIENTS * len(addresses)) as pool:
        clients = [
            (run_id, pool.submit(send, run_id)) for run_id in addresses for _ in range(CLIENTS)
        ]
        return {
            run_id: [r for each, client in clients if each == run_id for r in client.result()]
            for run_id in addresses
        }


def busy_times(sent):
    """Return the begin and end of each time in which a server had requests; the clients pause
    between two of them.
    """
    times = []
    for begin_at, end_at in sorted((each["started_at"], each["ended_at"]) for each in sent):
        if times and begin_at <= times[-1][1]:
            times[-1] = times[-1][0], max(times[-1][1], end_at)
        else:
            times.append((begin_at, end_at))
    return times


def final_energy_j(exporter, run_id, sent):
    def finals():
        found = [exporter.get(f"/api/v1/requests/{each['id']}?run_id={run_id}")[1] for each in sent]
        return (
            [each["energy_joules"] for each in found]
            if all(each["state"] == "final" for each in found)
            else None
        )

    return sum(eventually(finals, f"energies of {run_id}", exporter.log, 90.0))


@pytest.mark.parametrize("utilizations", [(0.7,), (0.5, 0.2)], ids=["one server", "two servers"])
def test_llama_cpp_requests_add_up_to_the_energy_of_the_gpu(tmp_path, start, utilizations):
    """The GPU is never idle for long, so its idle power is unknown, and all energy is divided by
    the loads.
    """
    with ExitStack() as stack:
        servers = [start() for _ in utilizations]
        exporter = stack.enter_context(daemon(tmp_path, *OPTIONS))
        simulation = stack.enter_context(exporter.simulation())
        for number, ((_, process), utilization) in enumerate(
            zip(servers, utilizations, strict=True)
        ):
            simulation.drive(0, utilization, process.pid, 1 << 30)
            begin(
                exporter, "llama-server", run_id=f"llama-{number}", gpus=["0"], pids=[process.pid]
            )
        time.sleep(3.0)  # until the loads of the processes are known
        served = serve(
            exporter, {f"llama-{number}": address for number, (address, _) in enumerate(servers)}
        )
        found_j = [final_energy_j(exporter, run_id, sent) for run_id, sent in served.items()]
        offset_s = clock_s() - time.time()
        true_j = []
        for sent, utilization in zip(served.values(), utilizations, strict=True):
            times_s = [
                (begin_at + offset_s, end_at + offset_s) for begin_at, end_at in busy_times(sent)
            ]
            gpu_j = sum(simulation.energy_j(0, *time_s) for time_s in times_s)
            true_j.append(gpu_j * utilization / sum(utilizations))

    for sent, joules, own_j in zip(served.values(), found_j, true_j, strict=True):
        print(f"{len(sent)} requests: {joules:.1f} J of {own_j:.1f} J")
        assert len(sent) > 4
        assert {each["generated_tokens"] for each in sent} == {TOKENS}
        assert joules == pytest.approx(own_j, abs=0.02 * sum(true_j))
    assert sum(found_j) == pytest.approx(sum(true_j), rel=0.02)
