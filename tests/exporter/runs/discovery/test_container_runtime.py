"""Outcomes of pods and containers by a real containerd, through its CRI and its tasks."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial

import pytest

from tests.daemon import daemon, start, wait_until_it_serves
from tests.exporter.runs.discovery.test_discovered_runs import OPTIONS, wait_for_run
from tests.fakes.containerd import containerd_service
from tests.polling import eventually
from wattline_exporter.runs.discovery.container_exits import ContainerExits, ContainerRuntimes
from wattline_exporter.runs.discovery.outcomes import Outcomes
from wattline_exporter.runs.discovery.pods import PodDirectory
from wattline_exporter.sensors.kubernetes.pods import Pod
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner
from wattline_exporter.sensors.readings import boottime

DIE = "trap 'exit 143' TERM; sleep 600 & wait"
OUT_OF_MEMORY = "x=1; while :; do x=$x$x; done"


@pytest.fixture(scope="module")
def containerd():
    with containerd_service() as served:
        yield served


def runtimes(containerd):
    return ContainerRuntimes(lambda: [containerd.socket])


def pod_of(sandbox):
    return CgroupOwner("kubernetes", sandbox.uid, f"/kubepods/besteffort/pod{sandbox.uid}")


def find(containerd, owner, pods=None, before=lambda: None):
    """Return the outcome of an owner; `before` runs while the exits are awaited."""

    async def found():
        clients = runtimes(containerd)
        outcomes = Outcomes(pods, ContainerExits([], clients), clients)
        outcomes.watch([owner])
        await asyncio.sleep(0.5)
        await asyncio.to_thread(before)
        try:
            return await outcomes.find(owner)
        finally:
            outcomes.close()

    return asyncio.run(found())


@pytest.mark.parametrize(
    ("script", "memory", "outcome", "note"),
    [
        ("true", 0, "ok", ""),
        ("exit 3", 0, "failed", "container main ended with exit code 3"),
        (
            OUT_OF_MEMORY,
            16 << 20,
            "failed",
            "container main ended with exit code 137: out of memory",
        ),
    ],
)
def test_outcome_of_a_pod_is_that_of_its_containers(containerd, script, memory, outcome, note):
    pod = containerd.pod()
    container = containerd.container(pod, script, memory=memory)
    eventually(lambda: not containerd.pid(container), "the end of the container")
    found = find(containerd, pod_of(pod))
    assert (found.outcome, found.note) == (outcome, note)


def test_outcome_of_a_pod_is_that_of_its_last_attempt(containerd):
    pod = containerd.pod()
    for attempt, script in enumerate(("exit 1", "exit 0")):
        container = containerd.container(pod, script, attempt=attempt)
        eventually(lambda: not containerd.pid(container), "the end of an attempt")  # noqa: B023
    assert find(containerd, pod_of(pod)).outcome == "ok"


def test_pod_that_is_stopped_by_sigterm_is_interrupted(containerd):
    pod = containerd.pod()
    container = containerd.container(pod, DIE)
    time.sleep(0.2)  # for its trap
    os.kill(containerd.pid(container), signal.SIGTERM)
    eventually(lambda: not containerd.pid(container), "the end of the container")
    assert find(containerd, pod_of(pod)).outcome == "interrupted"


def test_pod_known_by_name_has_the_outcome_of_the_runtime(containerd):
    pod = containerd.pod()
    container = containerd.container(pod, "exit 3")
    eventually(lambda: not containerd.pid(container), "the end of the container")
    directory = PodDirectory(lambda: {pod.uid: Pod("ml", "train")}, clock=boottime)
    asyncio.run(directory.refresh())
    assert find(containerd, pod_of(pod), directory).outcome == "failed"


def test_pod_of_no_runtime_is_unknown(containerd):
    assert (
        find(
            containerd, CgroupOwner("kubernetes", "c1d8f6a2-7b1e-4a53-9d1c-0f6e5b2a9c01", "")
        ).outcome
        == "unknown"
    )


@pytest.mark.parametrize(
    ("sign", "outcome"), [(signal.SIGTERM, "interrupted"), (signal.SIGKILL, "failed")]
)
def test_container_outside_of_kubernetes_has_the_outcome_of_its_task(containerd, sign, outcome):
    identity = containerd.run(DIE)
    time.sleep(0.2)  # for its trap
    kill = partial(os.kill, containerd.pid(identity), sign)
    assert find(containerd, CgroupOwner("container", identity, ""), before=kill).outcome == outcome


def test_runtime_that_may_not_be_read_is_reported(tmp_path, caplog):
    socket = tmp_path / "none.sock"

    async def found():
        clients = ContainerRuntimes(lambda: [socket])
        outcomes = Outcomes(None, ContainerExits([], clients), clients)
        return [
            await outcomes.find(CgroupOwner("kubernetes", "u", "")) for _ in range(3)
        ], clients.failure

    (first, *_), failure = asyncio.run(found())
    assert first.outcome == "unknown"
    assert failure == f"cannot open {socket}: no such socket; check that the container runtime runs"
    assert [record.message for record in caplog.records] == [
        f"outcomes of containers are unknown: {failure}"
    ]


def test_discovered_pod_has_the_outcome_of_its_container(tmp_path, containerd):
    environment = {"CONTAINER_RUNTIME_ENDPOINT": f"unix://{containerd.socket}"}
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "kubernetes", env=environment) as exporter,
        exporter.simulation() as simulation,
    ):
        pod = containerd.pod()
        container = containerd.container(pod, "sleep 600; exit 3")
        pid = containerd.pid(container)
        simulation.drive(0, 0.5, pid)
        wait_for_run(exporter, workload="kubernetes", state="running")
        time.sleep(1.0)
        os.kill(pid, signal.SIGKILL)
        killed_at = time.time()
        simulation.release(0, pid)
        containerd.stop(pod)  # as the kubelet does after the end of all containers
        exporter.wait_for_metric(
            lambda value: value == 1.0, "wattline_discovery_source_up", source="container_runtime"
        )
        run = wait_for_run(exporter, workload="kubernetes", state="ended")
    assert (run["run_id"], run["outcome"]) == (f"pod-{pod.uid}", "failed")
    assert run["ended_at"] == pytest.approx(killed_at, abs=1.5)
    assert "container main ended with exit code 137" in run["notes"]


def test_pod_ended_during_downtime_of_exporter_ends_with_its_container(tmp_path, containerd):
    environment = {"CONTAINER_RUNTIME_ENDPOINT": f"unix://{containerd.socket}"}
    options = (*OPTIONS, "--runs.discover", "kubernetes")
    first = start(tmp_path, *options, env=environment)
    wait_until_it_serves(first)
    with first.simulation() as simulation:
        pod = containerd.pod("late")
        pid = containerd.pid(containerd.container(pod, "sleep 600"))
        simulation.drive(0, 0.5, pid)
        wait_for_run(first, state="running")
        time.sleep(2.0)  # until it is saved
        first.process.kill()
        first.process.wait(30)
        time.sleep(1.0)
        os.kill(pid, signal.SIGTERM)
        killed_at = time.time()
        simulation.release(0, pid)
        time.sleep(2.0)
        containerd.stop(pod)
        with daemon(tmp_path, *options, env=environment) as second:
            run = wait_for_run(second, state="ended")
    assert run["ended_at"] == pytest.approx(killed_at, abs=0.3)
    assert run["outcome"] == "interrupted"
    assert not any("it ended between" in note for note in run["notes"])
