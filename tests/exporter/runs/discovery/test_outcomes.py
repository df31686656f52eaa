"""Outcomes of containers by a real Podman, and of units by systemctl."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.daemon import daemon
from tests.exporter.runs.discovery.test_discovered_runs import OPTIONS, wait_for_run
from tests.fakes.podman import IMAGE, podman_service
from wattline_exporter.runs.discovery import outcomes
from wattline_exporter.runs.discovery.container_exits import (
    ContainerExits,
    engine_sockets,
    runtime_sockets,
)
from wattline_exporter.runs.discovery.outcomes import Outcomes, unit_end
from wattline_exporter.sensors.processes.cgroup_paths import CgroupOwner

UNIT = "ollama.service"


@pytest.fixture(scope="module")
def podman():
    with podman_service() as served:
        yield served


def run_container(podman, script, *options):
    """Start a container; return its id."""
    return podman(
        "run", "--detach", "--cgroups=enabled", *options, IMAGE, "sh", "-c", script
    ).strip()


def container(identity):
    return CgroupOwner("container", identity, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("script", "options", "signal", "outcome"),
    [
        ("sleep 1", (), None, "ok"),
        ("sleep 1; exit 3", (), None, "failed"),
        ("sleep 1; exit 3", ("--rm",), None, "failed"),  # removed at its end
        ("trap 'exit 143' TERM; sleep 600 & wait", (), "TERM", "interrupted"),
        ("sleep 600", (), "KILL", "failed"),
    ],
)
def test_container_outcome_follows_its_exit_code(podman, script, options, signal, outcome):
    identity = run_container(podman, script, *options)

    async def ended():
        found = Outcomes(containers=ContainerExits([podman.folder / "api.sock"]))
        found.watch([container(identity)])
        await asyncio.sleep(0.5)
        if signal:
            await asyncio.to_thread(podman, "kill", f"--signal={signal}", identity)
        try:
            return await found.find(container(identity))
        finally:
            found.close()

    assert asyncio.run(ended()).outcome == outcome


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_container_that_ended_before_the_watch_has_an_outcome(podman):
    identity = run_container(podman, "exit 4")
    podman("wait", identity)

    async def ended():
        found = Outcomes(containers=ContainerExits([podman.folder / "api.sock"]))
        found.watch([container(identity)])
        return await found.find(container(identity))

    found = asyncio.run(ended())
    assert (found.outcome, found.note) == ("failed", "the container ended with exit code 4")


def test_container_without_an_engine_is_unknown(tmp_path):
    async def ended():
        found = Outcomes(containers=ContainerExits([tmp_path / "none.sock"]))
        found.watch([container("4f1c")])
        return await found.find(container("4f1c"))

    assert asyncio.run(ended()).outcome == "unknown"


def test_engine_that_hangs_costs_a_bounded_time(tmp_path, monkeypatch):
    monkeypatch.setattr(outcomes, "WAIT_S", 0.3)

    async def ended():
        accepted = []  # connections without a response
        server = await asyncio.start_unix_server(
            lambda *pair: accepted.append(pair), tmp_path / "api.sock"
        )
        found = Outcomes(containers=ContainerExits([tmp_path / "api.sock"]))
        found.watch([container("4f1c")])
        outcome = await found.find(container("4f1c"))
        found.close()
        for _, writer in accepted:
            writer.close()
        server.close()
        await server.wait_closed()
        return outcome

    assert asyncio.run(ended()).outcome == "unknown"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_discovered_container_has_its_outcome_and_true_end(tmp_path, podman):
    environment = {"CONTAINER_HOST": podman.host}
    with (
        daemon(tmp_path, *OPTIONS, "--runs.discover", "container", env=environment) as exporter,
        exporter.simulation() as simulation,
    ):
        identity = run_container(podman, "sleep 600", "--rm")
        pid = int(podman.state(identity)["Pid"])
        simulation.drive(0, 0.5, pid)
        wait_for_run(exporter, workload="container", state="running")
        time.sleep(2.0)
        podman("kill", "--signal=KILL", identity)
        killed_at = time.time()
        simulation.release(0, pid)
        ended = wait_for_run(exporter, workload="container", state="ended")
    assert ended["run_id"] == f"container-{identity[:12]}"
    assert ended["outcome"] == "failed"
    assert ended["ended_at"] == pytest.approx(killed_at, abs=1.5)


def test_engine_sockets_are_those_of_the_environment_and_the_defaults(tmp_path):
    async def sockets():
        folders = [tmp_path, tmp_path / "user/1000/podman"]
        folders[1].mkdir(parents=True)
        for folder in folders:
            (await asyncio.start_unix_server(lambda *_: None, folder / "podman.sock")).close()
        named = {
            "CONTAINER_HOST": f"unix://{tmp_path}/podman.sock",
            "DOCKER_HOST": "tcp://127.0.0.1:2375",
        }
        return [path for path in engine_sockets(named, tmp_path) if path.is_relative_to(tmp_path)]

    assert asyncio.run(sockets()) == [
        tmp_path / "podman.sock",
        tmp_path / "user/1000/podman/podman.sock",
    ]


def test_runtime_sockets_are_that_of_the_environment_and_the_defaults(tmp_path):
    async def sockets():
        paths = [tmp_path / "cri.sock", tmp_path / "crio/crio.sock"]
        for path in paths:
            path.parent.mkdir(exist_ok=True)
            (await asyncio.start_unix_server(lambda *_: None, path)).close()
        return (
            runtime_sockets({"CONTAINER_RUNTIME_ENDPOINT": f"unix://{paths[0]}"}, tmp_path) == paths
        )

    assert asyncio.run(sockets())


def systemctl(folder, *states):
    """Return a systemctl that prints these states, one for each call, and the last one from then
    on.
    """
    for number, state in enumerate(states):
        (folder / f"{number}").write_text("\n".join(state.split(",")) + "\n")
    script = folder / "systemctl"
    script.write_text(
        f'#!/bin/sh\ncd {folder}\ntest "$4" = {UNIT} || exit 1\n'
        f"n=$(cat calls 2>/dev/null || echo 0)\necho $((n < {len(states) - 1} ? n + 1 : n)) > "
        "calls\ncat $n\n"
    )
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("states", "outcome"),
    [
        (["LoadState=loaded,ActiveState=inactive,SubState=dead,Result=success"], "ok"),
        (["LoadState=loaded,ActiveState=failed,SubState=failed,Result=exit-code"], "failed"),
        (["LoadState=loaded,ActiveState=failed,SubState=failed,Result=oom-kill"], "failed"),
        (["LoadState=loaded,ActiveState=activating,SubState=auto-restart,Result=signal"], "failed"),
        (["LoadState=loaded,ActiveState=active,SubState=running,Result=success"], "unknown"),
        (["LoadState=not-found,ActiveState=inactive,SubState=dead,Result=success"], "unknown"),
        (
            [
                "LoadState=loaded,ActiveState=deactivating,SubState=stop-post,Result=timeout",
                "LoadState=loaded,ActiveState=failed,SubState=failed,Result=timeout",
            ],
            "failed",
        ),
    ],
)
def test_unit_outcome_is_the_result_that_systemd_reports(tmp_path, states, outcome):
    assert asyncio.run(unit_end(UNIT, systemctl(tmp_path, *states))).outcome == outcome


def test_node_without_systemd_has_no_outcome_of_units(tmp_path):
    assert asyncio.run(unit_end(UNIT, str(tmp_path / "none"))).outcome == "unknown"
